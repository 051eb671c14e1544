"""Which worker runs which tests, and what collecting them leaves behind."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

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


def test_one_worker_computes_beside_the_engines(tmp_path: Path) -> None:
    """Engines are one worker's, what is beside them another's, which gives way to the engines."""
    for path, text in (
        ("tests/e2e/test_engine.py", MEETS.format(name="engine", other="beside")),
        ("tests/proto/test_beside.py", MEETS.format(name="beside", other="engine")),
        ("tests/deploy/test_beside_too.py", MEETS.format(name="beside", other="engine")),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    with run_suite(tmp_path, workers=3) as controller:
        printed, _ = controller.communicate(timeout=180)
    assert controller.returncode == 0, printed
    engine, beside = (
        {tuple(line.split()) for line in (tmp_path / name).read_text().splitlines()}
        for name in ("engine", "beside")
    )
    ((engines, usual),) = engine
    ((others, priority),) = beside
    assert engines != others
    assert int(priority) == min(int(usual) + 10, 19)


def test_no_search_for_garbage_looks_at_what_was_imported() -> None:
    """Searches go on, among what tests make."""
    assert gc.isenabled()
    made: list[object] = []
    searched = {id(each) for each in gc.get_objects()}
    assert id(made) in searched
    assert id(vars(pytest)) not in searched
