"""Answers that may be wrong are counted once each, whatever the number of ranks and of restarts."""

from __future__ import annotations

from penstock.agent.batch import BatchColumns
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.batch_counting import MAX_ANSWERS, SuspectAnswers
from penstock.agent.metrics.catalogue import from_log
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


def differing(request_id: str, *, used: bool = True) -> events.Event:
    """Return a load that differs from its sender's digest."""
    return transfer_failure(
        request_id,
        mode=common.FAILURE_MODE_TRANSFER,
        error_type=common.ERROR_TYPE_CORRUPT,
        compared=4,
        mismatched=1,
        used=used,
    )


def contents(*told: events.Event) -> BatchColumns:
    """Return a batch of events."""
    return BatchColumns(Batch(epoch=1, seq=1, events=told))


def test_each_request_counts_once() -> None:
    """Ranks that read report one each; a drill is none; another engine's request is another."""
    key, other = EngineKey("p", "0"), EngineKey("q", "0")
    counted = SuspectAnswers()
    assert counted.new(key, contents(late("a"), late("a"), late("b"))) == {"late_read": 2}
    assert counted.new(key, contents(late("a"), late("c", rehearsal=True))) == {}
    assert SuspectAnswers(counted.dump()).new(key, contents(late("a"), late("c"))) == {"late_read": 1}
    assert counted.new(other, contents(late("a"))) == {"late_read": 1}


def test_each_reason_counts_once() -> None:
    """A late write is of the side that receives; a mismatch is one whose content was used."""
    key = EngineKey("d", "0")
    counted = SuspectAnswers()
    write = late("a", direction=common.DIRECTION_RECEIVE)
    found = counted.new(key, contents(late("a"), write, write, differing("a"), differing("a")))
    assert found == {"late_read": 1, "late_write": 1, "mismatch": 1}
    assert counted.new(key, contents(differing("b", used=False))) == {}
    again = SuspectAnswers(counted.dump())
    assert again.new(key, contents(late("a"), write, differing("a"))) == {}
    # Nobody knows whether two writes without a request are one.
    nameless = late("", direction=common.DIRECTION_RECEIVE)
    assert again.new(key, contents(nameless, nameless)) == {"late_write": 2}


def test_memory_is_bounded() -> None:
    """The oldest are forgotten."""
    counted = SuspectAnswers()
    counted.new(EngineKey("p", "0"), contents(*(late(str(number)) for number in range(MAX_ANSWERS + 5))))
    assert len(counted.dump()) == MAX_ANSWERS


def _value(aggregator: Aggregator, reason: str) -> int:
    return sum(
        row.total
        for engine in aggregator.engines([from_log.SUSPECT_ANSWERS])
        for row in engine.rows.get(from_log.SUSPECT_ANSWERS, ())
        if row.labels == (reason,)
    )


def test_counters_survive_a_restart() -> None:
    """What the engine says and what was read late, in one metric; a dump goes on where it was."""
    aggregator = Aggregator()
    aggregator.apply(PREFILL_CORE, contents(late("a"), late("a")))
    nan = event("answer_suspected", "r", reason=events.SUSPECT_REASON_NAN, nans_in_logits=3)
    drill = event("answer_suspected", "r", reason=events.SUSPECT_REASON_FAILED_READ)
    drill.rehearsal = True
    aggregator.apply(DECODE_CORE, contents(nan, drill, differing("m"), differing("m")))
    restored = Aggregator()
    restored.load(aggregator.dump())
    restored.apply(PREFILL_CORE, contents(late("a"), late("b")))
    restored.apply(DECODE_CORE, contents(differing("m"), late("w", direction=common.DIRECTION_RECEIVE)))
    reasons = ("late_read", "late_write", "mismatch", "nan", "failed_read")
    assert [_value(restored, reason) for reason in reasons] == [2, 1, 1, 1, 0]
