"""A test run that gets a signal, or whose worker does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.suite_run import run_suite

if TYPE_CHECKING:
    from pathlib import Path

TEST = """
import os, signal, time
from pathlib import Path
import pytest

@pytest.fixture
def engine():
    yield
    Path("stopped").touch()

def test_long(engine):
    os.kill(int(Path("controller").read_text()), signal.SIGTERM)
    time.sleep(30)
    Path("went-on").touch()
"""

CRASHES = """
import os, signal

def test_before():
    pass

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""
PASSES = "def test_{}(): pass"


def test_sigterm_reaches_the_controller_only(tmp_path: Path) -> None:
    """As ``make`` and CI send it; the workers end as well, and stop what they have started."""
    (tmp_path / "test_long.py").write_text(TEST)
    with run_suite(tmp_path, workers=1) as controller:
        (tmp_path / "controller").write_text(str(controller.pid))
        printed, _ = controller.communicate(timeout=180)
    assert (tmp_path / "stopped").exists(), printed
    assert not (tmp_path / "went-on").exists()


@pytest.mark.parametrize("name", ["test_a.py", "test_g.py", "test_z.py"])
def test_a_worker_that_dies_fails_one_test(tmp_path: Path, name: str) -> None:
    """The run goes on without that test and ends, be its file the first, one of many or the last."""
    for letter in "bcdefhijklmnopqrstuvwxy":
        (tmp_path / f"test_{letter}.py").write_text(PASSES.format(letter))
    (tmp_path / name).write_text(CRASHES)
    with run_suite(tmp_path, workers=2) as controller:
        printed, _ = controller.communicate(timeout=180)
    assert controller.returncode == 1, printed
    assert f"crashed while running '{name}::test_crashes'" in printed
    assert "1 failed, 25 passed" in printed
