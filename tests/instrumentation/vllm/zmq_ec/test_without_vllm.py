"""These are tests of the parts of ``ZmqECConnector``, which do without vLLM: they need not run on each version of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


def test_nothing_here_needs_vllm() -> None:
    """Every test module of this directory, and what it imports of ours, can be imported where there is no vLLM."""
    modules = sorted(f"tests.instrumentation.ec.{path.stem}" for path in HERE.glob("*.py"))
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
