"""The parts of ``ZmqECConnector`` and their tests import no vLLM; ``test_connector*.py`` test vLLM's interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


def test_nothing_here_needs_vllm() -> None:
    """Every other test module of this directory and those below can be imported without vLLM."""
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in HERE.rglob("*.py")
        if not path.stem.startswith("test_connector")
    )
    assert len(modules) > 10
    code = f"""
import importlib, sys
sys.modules["vllm"] = None
for name in {modules}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
