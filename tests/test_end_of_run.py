"""A test run that gets a signal, or whose worker does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agent.agent import short_directory, wait_until
from tests.support.suite_run import run_suite

ROOT = Path(__file__).parents[1]
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

STARTS = """
import os, sys, time
from pathlib import Path
from tests.support.agent.agent import AgentProcess

agent = AgentProcess(Path(sys.argv[1])).start()
print(agent.process.pid, flush=True)
time.sleep(300)
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
        printed, _ = controller.communicate(timeout=600)
    assert (tmp_path / "stopped").exists(), printed
    assert not (tmp_path / "went-on").exists()


def test_a_run_that_is_killed_leaves_no_agent() -> None:
    """Its agents are forks of a process that ends with it, and ends them."""
    with short_directory() as directory:
        run = subprocess.Popen(
            [sys.executable, "-c", STARTS, str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        with run.stdout:
            pid = int(run.stdout.readline())
        run.kill()
        run.wait()
        wait_until(lambda: _has_ended(pid), "the agent has ended")


def _has_ended(pid: int) -> bool:
    """Return whether a process is gone, or is a zombie: where init collects none, that is all that is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("test_a.py", marks=pytest.mark.long),
        "test_g.py",
        pytest.param("test_z.py", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_dies_fails_one_test(tmp_path: Path, name: str) -> None:
    """The run goes on without that test and ends, be its file the first, one of many or the last."""
    for letter in "bcdefhijklmnopqrstuvwxy":
        (tmp_path / f"test_{letter}.py").write_text(PASSES.format(letter))
    (tmp_path / name).write_text(CRASHES)
    with run_suite(tmp_path, workers=2) as controller:
        printed, _ = controller.communicate(timeout=600)
    assert controller.returncode == 1, printed
    assert f"crashed while running '{name}::test_crashes'" in printed
    assert "1 failed, 25 passed" in printed
