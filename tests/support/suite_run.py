"""A run of other tests under the hooks of this suite's ``conftest.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run_suite(directory: Path, workers: int) -> subprocess.Popen[str]:
    """Start a run of the tests in *directory* by so many workers."""
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    options = ["-p", "xdist.plugin", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", "."]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "-n", str(workers)],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
