"""A script in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


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
