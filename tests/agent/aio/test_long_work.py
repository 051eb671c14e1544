"""Long work makes room for other threads, and not more often than it has to."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from penstock.agent.aio import long_work

if TYPE_CHECKING:
    import pytest


def test_it_pauses_once_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the work since the last pause, however many steps that were."""
    now, pauses = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(now)
        now += seconds

    monkeypatch.setattr(long_work.time, "monotonic", lambda: now)
    monkeypatch.setattr(long_work.time, "sleep", sleep)
    work = long_work.LongWork()
    for _ in range(100):
        now += 0.0001
        work.step()

    assert len(pauses) == 9
    assert all(later - earlier >= 0.001 for earlier, later in itertools.pairwise(pauses))
