"""The emit path: bounded, counted, lock-free."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.telemetry.emitter import Emitter

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY = 8


class WakeCounter:
    """Counts how often it is rung."""

    def __init__(self) -> None:
        self.wakes = 0

    def __call__(self) -> None:
        """Count one wake-up."""
        self.wakes += 1


@pytest.fixture
def waker() -> WakeCounter:
    """Make a waker."""
    return WakeCounter()


@pytest.fixture
def emitter(waker: WakeCounter) -> Emitter:
    """Make a small emitter."""
    return Emitter(waker, CAPACITY)


def fill_events(emitter: Emitter, number: int) -> None:
    """Emit events."""
    for index in range(number):
        emitter.emit_event("load_outcome", {}, component=1, request_id=str(index), time_ns=1)


def fill_transfers(emitter: Emitter, number: int) -> None:
    """Emit transfers."""
    for index in range(number):
        emitter.emit_transfer(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "c", "p", "e", str(index))


def fill_probes(emitter: Emitter, number: int) -> None:
    """Emit probes."""
    for index in range(number):
        emitter.emit_probe(1, 2, 3, "c", "p", str(index))


KINDS = [
    pytest.param("events", fill_events, "load_outcome", id="events"),
    pytest.param("transfers", fill_transfers, "transfer_sample", id="transfers"),
    pytest.param("probes", fill_probes, "probe_sample", id="probes"),
]


@pytest.mark.parametrize(("queue", "fill", "kind"), KINDS)
def test_full_queue_gives_up_the_newest(
    emitter: Emitter, queue: str, fill: Callable[[Emitter, int], None], kind: str
) -> None:
    """Beyond the bound the oldest stay and each loss is counted by kind."""
    fill(emitter, CAPACITY + 3)
    kept = getattr(emitter, queue)
    assert len(kept) == CAPACITY
    assert "0" in kept[0]
    assert emitter.drops.drain() == {("queue_full", kind): 3}


def test_one_ring_for_each_mark(emitter: Emitter, waker: WakeCounter) -> None:
    """The first entry wakes the exporter; the next ones do not, until it sets the mark again."""
    fill_events(emitter, 3)
    fill_probes(emitter, 3)
    assert waker.wakes == 1
    emitter.wake_threshold = 4
    fill_events(emitter, 1)
    assert waker.wakes == 1
    fill_events(emitter, 2)
    assert waker.wakes == 2


def test_time_is_now_unless_given(emitter: Emitter) -> None:
    """An event carries the wall clock of its emission, or the time its hook knows."""
    before = time.time_ns()
    emitter.emit_event("load_outcome", {}, component=1)
    emitter.emit_event("load_outcome", {}, component=1, time_ns=5)
    assert before <= emitter.events[0][0] <= time.time_ns()
    assert emitter.events[1][0] == 5


def test_reset_forgets(emitter: Emitter, waker: WakeCounter) -> None:
    """After a reset nothing waits, nothing is counted, and the first entry wakes again."""
    fill_transfers(emitter, CAPACITY + 1)
    emitter.reset()
    assert emitter.queued() == 0
    assert not emitter.drops
    fill_transfers(emitter, 1)
    assert waker.wakes == 2


def test_threads_lose_nothing_uncounted() -> None:
    """Four threads emit while one takes: taken, waiting and dropped make up all."""
    emitter = Emitter(lambda: None, 64)
    threads = [threading.Thread(target=fill_transfers, args=(emitter, 5_000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = 0
    while any(thread.is_alive() for thread in threads):
        with contextlib.suppress(IndexError):
            emitter.transfers.popleft()
            taken += 1
    dropped = emitter.drops.drain()
    assert set(dropped) <= {("queue_full", "transfer_sample")}
    assert taken + len(emitter.transfers) + sum(dropped.values()) == 20_000
