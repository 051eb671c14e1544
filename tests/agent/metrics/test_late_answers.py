"""Answers that may be wrong are counted once each, whatever the number of ranks and of restarts."""

from __future__ import annotations

from penstock.agent.batch import BatchColumns
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.catalogue import from_log as c
from penstock.agent.metrics.late_answers import MAX_READS, LateAnswers
from penstock.agent.model import EngineKey
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import event, transfer_failure
from tests.support.agent.stories import DECODE_CORE, PREFILL_CORE


def late(request_id: str, *, direction: int = common.DIRECTION_SEND, rehearsal: bool = False) -> events.Event:
    """Return a late read."""
    found = transfer_failure(request_id, mode=common.FAILURE_MODE_LATE_READ, direction=direction)
    found.rehearsal = rehearsal
    return found


def contents(*told: events.Event) -> BatchColumns:
    """Return a batch of events."""
    return BatchColumns(Batch(epoch=1, seq=1, events=told))


def test_each_request_counts_once() -> None:
    """Ranks that read report one each; a late write and a drill are none; another engine's request is another."""
    key, other = EngineKey("p", "0"), EngineKey("q", "0")
    counted = LateAnswers()
    assert counted.new(key, contents(late("a"), late("a"), late("b"))) == 2
    assert counted.new(key, contents(late("a"), late("c", rehearsal=True))) == 0
    assert counted.new(key, contents(late("d", direction=common.DIRECTION_RECEIVE))) == 0
    assert LateAnswers(counted.dump()).new(key, contents(late("a"), late("c"))) == 1
    assert counted.new(other, contents(late("a"))) == 1


def test_memory_is_bounded() -> None:
    """The oldest are forgotten."""
    counted = LateAnswers()
    counted.new(EngineKey("p", "0"), contents(*(late(str(number)) for number in range(MAX_READS + 5))))
    assert len(counted.dump()) == MAX_READS


def _value(aggregator: Aggregator, reason: str) -> int:
    return sum(
        row.total
        for engine in aggregator.engines([c.SUSPECT_ANSWERS])
        for row in engine.rows.get(c.SUSPECT_ANSWERS, ())
        if row.labels == (reason,)
    )


def test_counters_survive_a_restart() -> None:
    """What the engine says and what was read late, in one metric; a dump goes on where it was."""
    aggregator = Aggregator()
    aggregator.apply(PREFILL_CORE, contents(late("a"), late("a")))
    nan = event("answer_suspected", "r", reason=events.SUSPECT_REASON_NAN, nans_in_logits=3)
    drill = event("answer_suspected", "r", reason=events.SUSPECT_REASON_FAILED_READ)
    drill.rehearsal = True
    aggregator.apply(DECODE_CORE, contents(nan, drill))
    restored = Aggregator()
    restored.load(aggregator.dump())
    restored.apply(PREFILL_CORE, contents(late("a"), late("b")))
    assert (_value(restored, "late_read"), _value(restored, "nan"), _value(restored, "failed_read")) == (
        2,
        1,
        0,
    )
