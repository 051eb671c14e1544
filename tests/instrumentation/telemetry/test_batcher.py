"""When batches are sealed: once a round, or at once when full."""

from __future__ import annotations

import itertools

import pytest
from penstock.instrumentation.telemetry.batcher import (
    BATCH_ENTRIES,
    NEVER,
    ROUTINE_DELAY,
    URGENT_DELAY,
    Batcher,
)
from penstock.instrumentation.telemetry.emitter import Emitter


@pytest.fixture
def emitter():
    """Return an emitter that wakes nothing."""
    return Emitter(lambda: None)


def emit(emitter, count=1, kind="request_closed"):
    """Emit some events."""
    for _ in range(count):
        emitter.emit_event(kind, {}, component=0)


@pytest.mark.parametrize(
    ("kind", "wait"), [("request_closed", ROUTINE_DELAY), ("transfer_failure", URGENT_DELAY)]
)
def test_a_stream_is_sealed_once_a_round(emitter, kind, wait):
    """One entry a millisecond for four seconds, after a silence; urgent entries leave sooner."""
    batcher, sealed = Batcher(emitter, lambda: None), []
    assert batcher.collect(10.0, free=True, snapshot_due=False) == []
    assert batcher.flush_at == NEVER
    for number in range(4000):
        if number % 10 == 0:  # so that no batch is full
            emit(emitter, kind=kind)
        now = 100 + number / 1000
        if batcher.collect(now, free=True, snapshot_due=False):
            sealed.append(now)
    assert sealed[0] == pytest.approx(100 + wait, abs=0.012)
    gaps = [later - earlier for earlier, later in itertools.pairwise(sealed)]
    assert gaps == pytest.approx([wait] * len(gaps), abs=0.012)
    assert len(gaps) >= int(3.8 / wait) - 1


def test_an_urgent_entry_takes_the_calm_ones_along(emitter):
    """And the next batch has its own time again."""
    batcher = Batcher(emitter, lambda: None)
    emit(emitter)
    assert batcher.collect(100.0, free=True, snapshot_due=False) == []
    emit(emitter, kind="load_outcome")
    assert batcher.collect(100.5, free=True, snapshot_due=False) == []
    (batch,) = batcher.collect(100.5 + URGENT_DELAY, free=True, snapshot_due=False)
    assert batch.held == {"request_closed": 1, "load_outcome": 1}
    emit(emitter)
    assert batcher.collect(101.0, free=True, snapshot_due=False) == []
    assert batcher.flush_at == 101.0 + ROUTINE_DELAY


def test_what_waits_goes_with_a_snapshot(emitter):
    """One wake-up for both, if nothing is in flight."""
    batcher = Batcher(emitter, lambda: None)
    emit(emitter)
    assert batcher.collect(100.0, free=False, snapshot_due=True) == []
    assert batcher.collect(100.0, free=True, snapshot_due=True)


def test_a_polling_sender_is_not_woken_for_a_calm_entry():
    """Only for an urgent one, and only once for a batch."""
    rings: list[int] = []
    emitter: Emitter
    emitter = Emitter(lambda: rings.append(emitter.queued()))
    batcher = Batcher(emitter, lambda: None)
    batcher.collect(100.0, free=True, snapshot_due=False, polled=True)
    emit(emitter, BATCH_ENTRIES - 1)
    assert rings == []
    emit(emitter, kind="transfer_failure")
    emit(emitter, kind="transfer_failure")
    assert len(rings) <= 2  # a full batch is another reason
    rings.clear()
    assert batcher.collect(100.0, free=True, snapshot_due=False, polled=True)
    emit(emitter, kind="transfer_failure")
    assert rings == []  # what was left of the full batch is waited for already
    assert batcher.collect(100.0 + URGENT_DELAY, free=True, snapshot_due=False, polled=True)
    emit(emitter, 2, kind="transfer_failure")
    assert rings == [1]


def test_full_batches_do_not_wait(emitter):
    """Not for the pace, and not for a free link."""
    batcher = Batcher(emitter, lambda: None)
    emit(emitter)
    assert batcher.collect(100.0, free=True, snapshot_due=False) == []
    assert batcher.collect(100.0 + ROUTINE_DELAY, free=True, snapshot_due=False)
    emit(emitter, BATCH_ENTRIES)
    assert batcher.collect(100.0 + ROUTINE_DELAY, free=False, snapshot_due=False)
