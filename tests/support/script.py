"""Scripts: a text in an interpreter of its own, and a program of ``scripts`` as a module."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

_SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_script(name: str) -> Any:
    """Import ``scripts/<name>.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, _SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *script* in a process where nothing else uses grpc to its end, which must be a good one."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    assert done.returncode == 0, done.stderr
    return done
