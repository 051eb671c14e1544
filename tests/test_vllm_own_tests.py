"""``make test-vllm-own``: what the plugin writes of a run, and what counts as a difference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.script import load_script

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest

def test_passes(): pass

def test_fails(): assert False

@pytest.mark.skip
def test_is_skipped(): pass

@pytest.fixture
def broken():
    yield
    raise RuntimeError

def test_ends_badly(broken): pass
"""

script: Any = load_script("vllm_own_tests")


def test_the_plugin_writes_the_worst_of_each_tests_phases(tmp_path: Path) -> None:
    """Run with a real pytest."""
    (tmp_path / "test_them.py").write_text(TESTS)
    result = tmp_path / "result.json"
    env = {**os.environ, "PYTHONPATH": str(script.PLUGIN), "PENSTOCK_OWN_TESTS": str(result)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "own_outcomes", "-p", "no:cacheprovider", "."]
    subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True, timeout=120)
    assert json.loads(result.read_text())["outcomes"] == {
        "test_them.py::test_passes": "passed",
        "test_them.py::test_fails": "failed",
        "test_them.py::test_is_skipped": "skipped",
        "test_them.py::test_ends_badly": "failed",
    }


def test_a_test_that_only_one_run_has_differs() -> None:
    """As does one with another outcome."""
    without = {"outcomes": {"same": "passed", "changed": "passed", "lost": "passed"}}
    with_hooks = {"outcomes": {"same": "passed", "changed": "failed", "new": "skipped"}}
    assert script.differences(without, with_hooks) == ["changed", "lost", "new"]
    assert script.differences(without, without) == []
