"""What engines did together: sums over engines and agents, by the agent's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.admin.lookups import AgentSignals, note_queues, signals_of, sum_signals
from penstock.agent.batch import BatchColumns
from penstock.agent.metrics import SLOT_NANO, Aggregator
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import BLOCK_HOLDER_LOAD, QUEUE_REASON_CAPACITY, Snapshot

from tests.support.agent.batches import TIME, event
from tests.support.agent.metric_logs import SECOND, live, source

_NOW = TIME + 3 * SLOT_NANO
_START = TIME // SLOT_NANO * SLOT_NANO
_MOST, _MOST_32 = (1 << 64) - 1, (1 << 32) - 1


def _view(
    engine: str,
    snapshot: Snapshot | None = None,
    ahead: int = 0,
    *,
    connected: bool = True,
    paused: bool = False,
) -> Any:
    """Stand for an engine with one source whose clock is *ahead* of the agent's."""
    found = live(source(engine), snapshot, connected=connected)
    if ahead:
        found.clock_readings.append(ahead)
    return SimpleNamespace(key=EngineKey("", engine), connected=connected, paused=paused, sources=(found,))


def _ended(aggregator: Aggregator, engine: str, when: int = TIME, count: int = 1) -> None:
    batch = Batch(events=[event("request_closed", f"r{each}", time_ns=when) for each in range(count)])
    aggregator.apply(source(engine), BatchColumns(batch))


def test_engines_are_summed() -> None:
    """Of two that ended requests and tell of their queues; a third has no slots yet."""
    aggregator = Aggregator()
    snapshot = Snapshot(
        queue={
            "running": 2,
            "waiting": [{"reason": QUEUE_REASON_CAPACITY, "count": 3}],
            "total_blocks": 100,
        },
        held=[{"holder": BLOCK_HOLDER_LOAD, "blocks": 25}],
    )
    views = [_view("0", snapshot), _view("1", snapshot), _view("2", Snapshot(), connected=False)]
    _ended(aggregator, "0", count=2)
    _ended(aggregator, "1", count=3)
    note_queues(aggregator, views, TIME)

    found = signals_of(aggregator, views, 0, _NOW)
    (slot,) = found.slots
    assert (found.engines, found.engines_left_out, found.slot_nano) == (3, 0, SLOT_NANO)
    assert (slot.start_unix_nano, slot.engines, slot.requests, slot.queues) == (_START, 2, 5, 2)
    assert (slot.running, slot.waiting, slot.held_blocks, slot.total_blocks) == (4, 6, 50, 200)


def test_an_older_engine_does_not_tell_of_its_queue() -> None:
    """It is seen, so that what it did is known: nothing."""
    aggregator, views = Aggregator(), [_view("0", Snapshot())]
    note_queues(aggregator, views, TIME)

    (slot,) = signals_of(aggregator, views, 0, _NOW).slots
    assert (slot.engines, slot.queues, slot.requests) == (1, 0, 0)


def test_what_a_silent_process_has_is_not_known() -> None:
    """Its stream is open, and its last word is old: its queue of then is none of now."""
    aggregator, views = Aggregator(), [_view("0", Snapshot(queue={"running": 9})), _view("1")]
    note_queues(aggregator, views, TIME + 10 * SECOND)

    assert not signals_of(aggregator, views, 0, TIME + 30 * SECOND).slots


def test_what_a_paused_engine_does_is_not_known() -> None:
    """Its hooks report nothing, which is not nothing."""
    aggregator, views = Aggregator(), [_view("0", Snapshot(), paused=True)]
    note_queues(aggregator, views, TIME)

    assert not signals_of(aggregator, views, 0, _NOW).slots


def test_a_clock_that_is_off_is_set_right() -> None:
    """Entries have the engine's time, slots the agent's."""
    aggregator, hour = Aggregator(), 3600 * SECOND
    views = [_view("0", Snapshot(), ahead=-hour), _view("1")]
    _ended(aggregator, "0", TIME - hour)
    _ended(aggregator, "1", TIME)

    (slot,) = signals_of(aggregator, views, 0, _NOW).slots
    assert (slot.start_unix_nano, slot.engines, slot.requests) == (_START, 2, 2)


def test_slots_that_still_fill_are_not_told() -> None:
    """Nor those before the time that is asked for."""
    aggregator, views = Aggregator(), [_view("0")]
    for number in range(4):
        _ended(aggregator, "0", TIME + number * SLOT_NANO)

    def starts(since: int) -> list[int]:
        found = signals_of(aggregator, views, since, _START + 3 * SLOT_NANO + SECOND)
        return [(slot.start_unix_nano - _START) // SLOT_NANO for slot in found.slots]

    assert starts(0) == [0, 1, 2]
    assert starts(_START + SLOT_NANO) == [1, 2]
    assert starts(_START + 1) == [1, 2]


_SLOTS = st.builds(
    admin.SignalSlot,
    start_unix_nano=st.sampled_from([_START, _START + SLOT_NANO]),
    engines=st.integers(0, _MOST_32),
    requests=st.integers(0, _MOST),
    gates=st.builds(lambda nano: {"queue_nano": nano}, st.integers(0, _MOST)),
    times=st.dictionaries(st.integers(0, _MOST_32), st.integers(0, _MOST), max_size=3),
)
_ANSWERS = st.builds(
    admin.Signals,
    slot_nano=st.sampled_from([SLOT_NANO, SLOT_NANO, 1]),
    engines=st.integers(0, _MOST_32),
    slots=st.lists(_SLOTS, max_size=3),
)


@given(st.lists(st.builds(AgentSignals, _ANSWERS, st.integers(-(10**12), 10**12)), max_size=4))
def test_agents_that_lie_are_summed_without_an_error(said: list[AgentSignals]) -> None:
    """Sums stay within the fields, slots in order and not of the future, whoever is summed first."""
    merged = sum_signals(said, _NOW)

    starts = [slot.start_unix_nano for slot in merged.slots]
    assert starts == sorted({*starts})
    assert all(start <= _NOW for start in starts)
    assert merged == sum_signals(reversed(said), _NOW)


def _said(*places: int, ahead: int = 0) -> AgentSignals:
    slots = [
        admin.SignalSlot(start_unix_nano=_START + place * SLOT_NANO + ahead, engines=1, requests=10)
        for place in places
    ]
    return AgentSignals(admin.Signals(slot_nano=SLOT_NANO, engines=1, slots=slots), ahead)


def _sums(*said: AgentSignals) -> dict[int, int]:
    merged = sum_signals(said, _NOW)
    return {(slot.start_unix_nano - _START) // SLOT_NANO: slot.requests for slot in merged.slots}


def test_a_slot_that_one_agent_has_not_told_yet_waits_for_it() -> None:
    """Half of a sum would be told as the whole; an agent that is far behind is not waited for."""
    assert _sums(_said(0, 1, 2), _said(0, 1)) == {0: 20, 1: 20}
    assert _sums(_said(0, 1, 2), _said(-9)) == {-9: 10, 0: 10, 1: 10, 2: 10}
    assert _sums(_said(1, 2), _said()) == {1: 10, 2: 10}


def test_agents_with_other_clocks_are_summed_by_ours() -> None:
    """What one of them says of next week is of no slot."""
    minute = 60 * SECOND
    assert _sums(_said(0, 1), _said(0, 1, ahead=minute)) == {0: 20, 1: 20}
    assert _sums(_said(0, 1), _said(120_000)) == {0: 10, 1: 10}
