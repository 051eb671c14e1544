"""When a thread that computes lets others run."""

from __future__ import annotations

from penstock.agent.aio import ThreadYield


def test_it_sleeps_once_for_each_fifth_of_a_millisecond() -> None:
    """However often it is called in between; what it sleeps is not counted."""
    now, slept = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(now)
        now += 1.0 + seconds

    let_go = ThreadYield(clock=lambda: now, sleep=sleep)
    let_go()
    now = 0.000_15
    let_go()
    assert not slept
    now = 0.000_25
    let_go()
    let_go()
    assert slept == [0.000_25]
    now += 0.000_15
    let_go()
    assert len(slept) == 1
    now += 0.000_1
    let_go()
    assert len(slept) == 2
