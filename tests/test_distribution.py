"""Which worker runs which tests, and what collecting them leaves behind."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SHARED_BY_SESSION
from tests.support.suite_run import run_suite

if TYPE_CHECKING:
    from pathlib import Path

# Each side goes on when the other one has begun: they pass at the same time, or not at all.
MEETS = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(3))
def test_meets(number):
    Path("{name}").touch()
    deadline = time.monotonic() + 60
    while not Path("{other}").exists():
        assert time.monotonic() < deadline, "{other} has not begun"
        time.sleep(0.01)
    worker = os.environ["PYTEST_XDIST_WORKER"]
    with Path("{name}").open("a") as file:
        print(worker, os.getpriority(os.PRIO_PROCESS, 0), file=file)
"""


def test_engines_are_one_workers_and_the_rest_gives_way(tmp_path: Path) -> None:
    """All engines' tests run in one process, at the usual priority; what is beside them and after them, at a lower one.

    Where sessions share the cores, each engine has its own share, and priorities stay.
    """
    _write(tmp_path / "tests/e2e/test_engine.py", name="engine", other="beside")
    _write(tmp_path / "tests/e2e/test_engine_too.py", name="engine", other="beside")
    _write(tmp_path / "tests/proto/test_beside.py", name="beside", other="engine")
    _write(tmp_path / "tests/deploy/test_beside_too.py", name="beside", other="engine")
    ((engines, usual),), others = _ran(tmp_path, "engine", "beside")
    assert {worker for worker, _ in others} - {engines}
    lower = int(usual) if SHARED_BY_SESSION else min(int(usual) + 5, 19)
    assert {int(priority) for _, priority in others} == {lower}


def test_without_engines_all_compute_at_once(tmp_path: Path) -> None:
    """All is shared out by file, at the usual priority."""
    _write(tmp_path / "tests/proto/test_one.py", name="one", other="two")
    _write(tmp_path / "tests/deploy/test_two.py", name="two", other="one")
    ((one, usual),), ((two, priority),) = _ran(tmp_path, "one", "two")
    assert one != two
    assert usual == priority == str(os.getpriority(os.PRIO_PROCESS, 0))


def _write(file: Path, **names: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(MEETS.format(**names))


def _ran(directory: Path, *names: str) -> list[set[tuple[str, ...]]]:
    """Run the tests; return for each name the workers and priorities of its tests."""
    with run_suite(directory, workers=2) as controller:
        printed, _ = controller.communicate(timeout=180)
    assert controller.returncode == 0, printed
    return [{tuple(line.split()) for line in (directory / name).read_text().splitlines()} for name in names]


def test_no_search_for_garbage_looks_at_what_was_imported() -> None:
    """Searches go on, among what tests make."""
    assert gc.isenabled()
    made: list[object] = []
    searched = {id(each) for each in gc.get_objects()}
    assert id(made) in searched
    assert id(vars(pytest)) not in searched
