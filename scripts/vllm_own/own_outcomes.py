"""A plugin for the pytest that runs vLLM's own tests: writes each outcome to the file that ``PENSTOCK_OWN_TESTS`` names.

Nothing here is used by the product.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any, Final

_RANK: Final = ("passed", "skipped", "failed")

said: dict[str, dict[str, Any]] = {"outcomes": {}, "hooks": {}, "schedulers": {}}
"""Outcomes by test, whether each hook is installed, and how many schedulers were built by kind."""

# Conftest and helpers of vLLM's tests import them, for tests that are not run here.
for _name in ("ray", "imagehash", "tblib"):
    sys.modules.setdefault(_name, types.ModuleType(_name))
sys.modules["tblib"].pickling_support = types.SimpleNamespace(install=lambda: None)  # type: ignore[attr-defined]


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst of a test's phases."""
    before = said["outcomes"].get(report.nodeid, "passed")
    said["outcomes"][report.nodeid] = max(before, report.outcome, key=_RANK.index)


def pytest_unconfigure() -> None:
    """Write what happened."""
    Path(os.environ["PENSTOCK_OWN_TESTS"]).write_text(json.dumps(said))
