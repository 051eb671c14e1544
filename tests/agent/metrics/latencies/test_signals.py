"""Slots of five seconds: what counts in which, what is known, what is bounded."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.batch import GATES, BatchColumns
from penstock.agent.metrics import KEPT_SLOTS, SLOT_NANO, Aggregator, QueueSample, SignalSlot
from penstock.agent.metrics.latencies import Signals
from penstock.agent.metrics.latencies.signals import Moved
from penstock.agent.model import AGENT_PROCESS, EngineKey
from penstock.proto.v1.common_pb2 import (
    DIRECTION_RECEIVE,
    DIRECTION_SEND,
    ROLE_DECODE,
    TRANSFER_RESULT_ERROR,
    TRANSFER_RESULT_OK,
)
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import PEER, TIME, event
from tests.support.agent.metric_logs import SECOND, source, transfers

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import Event

_KEY = EngineKey("", "0")
_AT = TIME // SLOT_NANO
_MS = 1_000_000
_TOOK = {"queue": 5, "own_prefill": 30, "transfer": 15}


def _signals(*batches: Batch, cap: int = 128) -> Signals:
    found = Signals(cap, clock=lambda: TIME)
    for batch in batches:
        found.apply(_KEY, BatchColumns(batch, batch.SerializeToString()))
    return found


def _slots(found: Signals, key: EngineKey = _KEY) -> dict[int, SignalSlot]:
    return found.slots(key, 0, _AT + 1_000)


def closed(
    number: int,
    *,
    when: int = TIME,
    reason: str = "stop",
    took: dict[str, int] | None = None,
    has_token: bool = True,
    **body: Any,
) -> Event:
    """Build the end of a request whose gates took so many milliseconds; without any it has none."""
    gates = {f"{gate}_nano": ms * _MS for gate, ms in (took or {}).items()}
    arrival = when - SECOND
    fields: dict[str, Any] = {"arrival_time_unix_nano": arrival, "finish_reason": reason, **body}
    if gates:
        fields["gates"] = gates
    if has_token:
        fields["first_token_time_unix_nano"] = arrival + sum(gates.values())
    return event("request_closed", f"r{number}", time_ns=when, **fields)


@pytest.mark.parametrize("count", [1, 40])
def test_requests_count_with_their_gates(count: int) -> None:
    """Few are looked at one by one, many at once."""
    slot = _slots(_signals(Batch(events=[closed(each, took=_TOOK) for each in range(count)])))[_AT]

    assert (slot.requests, slot.first_tokens, slot.failed, slot.recomputed) == (count, count, 0, 0)
    assert dict(zip(GATES, slot.gate_nano, strict=True)) == {
        gate: _TOOK.get(gate, 0) * count * _MS for gate in GATES
    }
    assert [*slot.times.values()] == [count]


_ENDS = st.builds(
    closed,
    st.integers(0, 99),
    when=st.integers(-3, 3).map(lambda slots: TIME + slots * SLOT_NANO),
    reason=st.sampled_from(["stop", "length", "abort", "error"]),
    took=st.dictionaries(st.sampled_from(GATES), st.integers(0, 900), max_size=7),
    has_token=st.booleans(),
    prompt_tokens=st.integers(1, 2),
    kv_role=st.sampled_from([0, ROLE_DECODE]),
)


@given(st.lists(_ENDS, max_size=40), st.randoms(use_true_random=False))
def test_how_entries_come_changes_nothing(ends: list[Event], random: Any) -> None:
    """All in one batch, or each in its own and in any order."""
    alone = [Batch(events=[each]) for each in ends]
    random.shuffle(alone)

    assert _slots(_signals(Batch(events=ends))) == _slots(_signals(*alone))


def test_failed_recomputed_and_clean_ups_are_told_apart() -> None:
    """A clean-up of vLLM's front end is no user's request; one without a first token has no time to it."""
    ends = [
        closed(1, reason="error", has_token=False),
        closed(2, took={"recompute": 20, "own_prefill": 5}),
        closed(3, reason="abort", has_token=False, prompt_tokens=1, kv_role=ROLE_DECODE),
        closed(4),
    ]
    slot = _slots(_signals(Batch(events=ends)))[_AT]

    assert (slot.requests, slot.failed, slot.recomputed, slot.first_tokens) == (3, 1, 1, 1)


def test_transfers_count_by_direction_and_end() -> None:
    """Those that failed moved nothing that counts."""
    batch = transfers([(_MS, size, PEER, TRANSFER_RESULT_OK) for size in (1, 2, 4, 8)])
    batch.transfers.direction[:] = [DIRECTION_RECEIVE, DIRECTION_RECEIVE, DIRECTION_SEND, DIRECTION_SEND]
    batch.transfers.result[3] = TRANSFER_RESULT_ERROR
    batch.transfers.end_time_unix_nano[1] = TIME - SLOT_NANO
    slots = _slots(_signals(batch, transfers([(_MS, 16, PEER, TRANSFER_RESULT_OK)] * 2)))

    assert (slots[_AT].received, slots[_AT].sent) == (Moved(3, 33), Moved(1, 4))
    assert (slots[_AT - 1].received, slots[_AT - 1].sent) == (Moved(1, 2), Moved())


def test_what_nobody_saw_is_not_known() -> None:
    """A look tells of a slot, and so does an entry; between them nothing is known."""
    found = _signals(Batch(events=[closed(1, when=TIME - 9 * SLOT_NANO)]))
    for ago in (6, 5, 2):
        found.note(_KEY, TIME - ago * SLOT_NANO, QueueSample(1, 0, 0, 10))

    slots = _slots(found)
    assert [_AT - index for index in slots] == [9, 6, 5, 2]
    assert slots[_AT - 6] == SignalSlot(queue=QueueSample(1, 0, 0, 10))
    assert [_AT - index for index in found.slots(_KEY, _AT - 8, _AT - 5)] == [6, 5]


def test_a_clock_that_cannot_be_is_not_seen() -> None:
    """Its entries are left out, so that its slots would say that it does nothing."""
    found = _signals()
    found.note(_KEY, TIME + 3600 * SECOND, None)
    assert not _slots(found)


def test_an_engine_without_room_costs_next_to_nothing() -> None:
    """It looks once whether another one's slots are over, and not at each request."""
    found = _signals(cap=1)
    found.note(_KEY, TIME, None)
    other = EngineKey("", "1")
    with patch.object(Signals, "_drop_idle", autospec=True, side_effect=Signals._drop_idle) as looks:
        found.apply(other, BatchColumns(Batch(events=[closed(each, reason="abort") for each in range(50)])))
    assert not found.knows(other)
    assert looks.call_count == 50
    assert found._none_idle_before == _AT + KEPT_SLOTS


def test_slots_and_engines_are_bounded() -> None:
    """Fifteen minutes each; an engine whose slots are over gives way."""
    late = TIME + (KEPT_SLOTS + 49) * SLOT_NANO
    found = Signals(2, clock=lambda: late + KEPT_SLOTS * SLOT_NANO)
    for index in range(KEPT_SLOTS + 50):
        found.note(_KEY, TIME + index * SLOT_NANO, None)
    assert len(_slots(found)) == KEPT_SLOTS
    found.note(_KEY, TIME, None)
    assert len(_slots(found)) == KEPT_SLOTS

    found.note(EngineKey("", "1"), late, None)
    found.note(EngineKey("", "2"), late, None)
    assert not found.knows(EngineKey("", "2"))
    found.note(EngineKey("", "2"), late + KEPT_SLOTS * SLOT_NANO, None)
    assert found.knows(EngineKey("", "2"))
    assert not _slots(found)


def test_times_that_cannot_be_are_left_out() -> None:
    """An entry of tomorrow would push all others out."""
    tomorrow = TIME + 86_400 * SECOND
    batch = transfers([(_MS, 1, PEER, TRANSFER_RESULT_OK)], time_ns=tomorrow)
    batch.events.append(closed(1, when=tomorrow))

    assert not _slots(_signals(batch))


def test_the_aggregator_has_them_until_an_engine_is_forgotten() -> None:
    """What the agent itself writes about an engine is none of its own."""
    aggregator, batch = Aggregator(), Batch(events=[closed(1)])
    aggregator.apply(source(), BatchColumns(batch))
    aggregator.apply(source(process=AGENT_PROCESS), BatchColumns(batch))
    found = aggregator.signals(_KEY, 0, _AT)
    assert found is not None
    assert [slot.requests for slot in found.values()] == [1]

    aggregator.refill_signals(
        [(source(), BatchColumns(batch)), (source(process=AGENT_PROCESS), BatchColumns(batch))]
    )
    assert aggregator.signals(_KEY, 0, _AT) == found
    forgotten = Batch(events=[event("forgotten")])
    aggregator.apply(source(process=AGENT_PROCESS), BatchColumns(forgotten))
    assert aggregator.signals(_KEY, 0, _AT) == {}


def test_a_queue_is_noted_while_the_counters_are_saved() -> None:
    """A dump holds the counters for long, and the loop must not wait for it."""
    aggregator = Aggregator()
    with aggregator._lock:
        noted = threading.Thread(target=aggregator.note_queue, args=(_KEY, time.time_ns(), None))
        noted.start()
        noted.join(60)
        assert not noted.is_alive()


def test_a_batch_that_cannot_be_counted_is_left_out_of_a_refill() -> None:
    """A bundle with one opens."""
    broken = transfers([(_MS, 1, PEER, TRANSFER_RESULT_OK)] * 2)
    del broken.transfers.direction[:]
    aggregator = Aggregator()
    aggregator.refill_signals(
        [(source(), BatchColumns(broken)), (source(), BatchColumns(Batch(events=[closed(1)])))]
    )

    found = aggregator.signals(_KEY, 0, _AT)
    assert found is not None
    assert [slot.requests for slot in found.values()] == [1]
