"""When batches are sealed: once a round, or at once when full."""

from __future__ import annotations

import itertools

import pytest
from penstock.instrumentation.collector import BATCH_ENTRIES, NEVER, ROUND, Collector
from penstock.instrumentation.emitter import Emitter


@pytest.fixture
def emitter():
    """Return an emitter that rings nobody."""
    return Emitter(lambda: None)


def emit(emitter, count=1):
    """Emit some events."""
    for _ in range(count):
        emitter.emit_event("goodbye", {}, component=0)


def test_a_stream_is_sealed_once_a_round(emitter):
    """One entry a millisecond for two seconds, after a silence."""
    collector, sealed = Collector(emitter, lambda: None), []
    assert collector.collect(10.0, free=True, accounts=False) == []
    assert collector.flush_at == NEVER
    for millisecond in range(2000):
        now = 100 + millisecond / 1000
        emit(emitter)
        if collector.collect(now, free=True, accounts=False):
            sealed.append(now)
    assert sealed[0] == pytest.approx(100 + ROUND, abs=0.002)
    gaps = [later - earlier for earlier, later in itertools.pairwise(sealed)]
    assert gaps == pytest.approx([ROUND] * len(gaps), abs=0.002)
    assert len(gaps) >= int(1.9 / ROUND) - 1


def test_full_batches_do_not_wait(emitter):
    """Not for the pace, and not for a free link."""
    collector = Collector(emitter, lambda: None)
    emit(emitter)
    assert collector.collect(100.0, free=True, accounts=False) == []
    assert collector.collect(100.0 + ROUND, free=True, accounts=False)
    emit(emitter, BATCH_ENTRIES)
    assert collector.collect(100.0 + ROUND, free=False, accounts=False)
