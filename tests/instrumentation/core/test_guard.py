"""The guard contains what is ours, counts it, and stays out of the way of the rest."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import tracemalloc

import pytest
from penstock.instrumentation.core.guard import LOG_INTERVAL, OTHER, DropCounter, GuardRegistry

from tests.support.seconds import SecondsClock


@pytest.fixture
def clock() -> SecondsClock:
    """Make a clock."""
    return SecondsClock()


@pytest.fixture
def guards(clock: SecondsClock) -> GuardRegistry:
    """Make guards as in production."""
    return GuardRegistry(raising=False, clock=clock)


def test_contains_and_counts(guards: GuardRegistry) -> None:
    """An exception is swallowed and counted by hook and class."""
    for error in (ValueError("a"), ValueError("b"), KeyError("c")):
        with guards("hook"):
            raise error
    assert guards.counts.drain() == {("hook", "ValueError"): 2, ("hook", "KeyError"): 1}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_lets_the_hosts_own_through(guards: GuardRegistry, kind: type[BaseException]) -> None:
    """What ends a process or a generator is never contained nor counted."""
    with pytest.raises(kind), guards("hook"):
        raise kind
    assert not guards.counts


def test_raises_under_test(clock: SecondsClock) -> None:
    """With raising on, the error is counted and comes through."""
    guards = GuardRegistry(raising=True, clock=clock)
    with pytest.raises(ValueError, match="seen"), guards("hook"):
        raise ValueError("seen")
    assert guards.counts.drain() == {("hook", "ValueError"): 1}


def test_is_reusable_and_reentrant(guards: GuardRegistry) -> None:
    """One guard may be entered while it is entered; each level contains its own error."""
    guard = guards("hook")
    assert guards("hook") is guard
    reached = False
    with guard:
        with guard:
            raise ValueError
        reached = True
        raise KeyError
    assert reached
    assert guards.counts.drain() == {("hook", "ValueError"): 1, ("hook", "KeyError"): 1}


def test_logs_once_a_minute(
    guards: GuardRegistry, clock: SecondsClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that fails all the time writes one line a minute, which tells how many it stands for."""
    with caplog.at_level(logging.WARNING, "vllm.penstock"):
        for _ in range(5):
            with guards("hook"):
                raise ValueError
        with guards("other"):
            raise ValueError
        assert [record.args for record in caplog.records] == [("hook", 0), ("other", 0)]
        clock.now += LOG_INTERVAL
        with guards("hook"):
            raise ValueError
    assert caplog.records[-1].args == ("hook", 4)
    assert caplog.records[-1].exc_info


def test_broken_logging_is_contained(guards: GuardRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a host whose logging raises sees nothing of it."""

    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(logging.getLogger("vllm.penstock"), "warning", broken)
    with guards("hook"):
        raise ValueError
    assert guards.counts


def test_allocates_nothing_when_nothing_happens(guards: GuardRegistry) -> None:
    """Ten thousand passes through a guard leave no memory behind."""
    with guards("hook"):
        pass
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            with guards("hook"):
                pass
        assert tracemalloc.get_traced_memory()[0] - before < 1_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("value", "raises"), [("raise", True), ("", False)])
def test_environment_decides(value: str, raises: bool) -> None:
    """PENSTOCK_GUARD=raise is read at import."""
    done = subprocess.run(
        [sys.executable, "-c", "from penstock.instrumentation.core.guard import guard; print(guard.raising)"],
        env={"PENSTOCK_GUARD": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(raises)


def test_tally_is_exact_over_threads() -> None:
    """Counts of several threads add up, whenever they are drained."""
    counter, drained = DropCounter(), 0

    def work() -> None:
        for _ in range(2_000):
            counter.add("a", "b")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained += sum(counter.drain().values())
    drained += sum(counter.drain().values())
    assert drained == 8_000


def test_tally_is_bounded() -> None:
    """Keys beyond the bound are counted as other; a key that is known goes on."""
    counter = DropCounter(limit=2)
    for word in "abcda":
        counter.add(word, "x")
    assert counter.drain() == {("a", "x"): 2, ("b", "x"): 1, (OTHER, OTHER): 2}
    assert counter.drain() == {}
