"""Which worker runs which tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        print(worker, os.getpriority(os.PRIO_PROCESS, 0), Path("first").exists(), file=file)
"""
FIRST = """
from pathlib import Path

def test_first():
    Path("first").touch()
"""


def test_one_worker_computes_beside_the_engines(tmp_path: Path) -> None:
    """After all others; engines are one worker's, what is beside them another's, which gives way to the engines."""
    for path, text in (
        ("tests/e2e/test_engine.py", MEETS.format(name="engine", other="beside")),
        ("tests/proto/test_beside.py", MEETS.format(name="beside", other="engine")),
        ("tests/deploy/test_beside_too.py", MEETS.format(name="beside", other="engine")),
        ("tests/faults/test_first.py", FIRST),
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
    ((engines, usual, _),) = engine
    ((others, priority, _),) = beside
    assert engines != others
    assert int(priority) > int(usual)
