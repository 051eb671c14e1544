"""Limits of the assembler: requests, bytes, ids, ages, entries."""

from __future__ import annotations

from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.spans import semconv

from tests.support.agent.batches import deferral_start
from tests.support.agent.fold import GRACE, Fold
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    PREFILL,
    PREFILL_CORE,
    Log,
    closed,
    closed_decode,
    sample,
)


def test_too_many_requests_give_up_the_oldest():
    """Beyond the limit the oldest unfinished requests are exported as unfinished."""
    log = Log()
    for number in range(5):
        log.add(DECODE_CORE, deferral_start(f"r{number}-aaaaaaaa"))
    fold = Fold(log, limits=AssemblyLimits(max_pending=3)).walk().rest()
    requests = [span for span in fold.spans if span.name == semconv.REQUEST]
    assert [span.request_id for span in requests] == ["r0-aaaaaaaa", "r1-aaaaaaaa"]
    assert all(span.attributes[semconv.UNFINISHED] is True for span in requests)
    assert fold.assembler.low == 3


def test_large_requests_are_given_up_for_the_memory():
    """The fewest oldest requests are given up and counted; a later end is exported as their end."""
    log = Log()
    for number in range(8):
        log.add(DECODE_CORE, deferral_start(f"r{number}-aaaaaaaa", remote_request_id="x" * 4000))
    fold = Fold(log, limits=AssemblyLimits(max_bytes=120_000)).walk()
    requests = [span.request_id for span in fold.spans if span.name == semconv.REQUEST]
    assert requests == [f"r{number}-aaaaaaaa" for number in range(len(requests))]
    assert 1 <= len(requests) <= 4
    assert fold.assembler.given_up == {"memory": len(requests)}
    log.add(DECODE_CORE, closed("r0-aaaaaaaa"))
    late = fold.walk(8).rest().spans[-1]
    assert (late.request_id, semconv.UNFINISHED in late.attributes) == ("r0-aaaaaaaa", False)


def test_what_is_remembered_is_bounded_by_its_bytes():
    """Remembered ids, of any length, stay within a byte limit; the newest are kept."""
    log = Log()
    for number in range(50):
        log.add(DECODE_CORE, closed(f"r{number}-{'x' * 4000}"), after=2 * GRACE)
    fold = Fold(log, limits=AssemblyLimits(max_remembered_bytes=200_000)).walk().rest()
    remembered = fold.assembler._remembered
    assert 0 < remembered.bytes <= 200_000
    assert 2 <= len(remembered) < 10


def test_an_old_request_is_given_up():
    """An unfinished request is given up at the age limit, so that the cursor moves; its end is exported when it comes."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE, remote_request_id=PREFILL))
    log.add(PREFILL_CORE, closed("other-eeeeeeee"), after=AssemblyLimits().max_age_nano)
    log.add(DECODE_CORE, closed_decode(), after=10 * GRACE)
    spans = [span for span in Fold(log).walk().rest().spans if span.name == semconv.REQUEST]
    _, unfinished, finished = spans
    assert unfinished.attributes[semconv.UNFINISHED] is True
    assert semconv.UNFINISHED not in finished.attributes
    assert unfinished.trace_id == finished.trace_id
    assert unfinished.span_id != finished.span_id


def test_a_flood_of_entries_of_one_request_is_bounded():
    """Entries above the limit are counted on the request's span."""
    log = Log()
    log.add(DECODE_WORKER, *(sample(DECODE, rank=rank) for rank in range(20)))
    log.add(DECODE_CORE, closed_decode())
    spans = {span.name: span for span in Fold(log, limits=AssemblyLimits(max_entries=16)).walk().rest().spans}
    assert spans[semconv.KV_LOAD].attributes[semconv.TRANSFERS] == 16
    assert spans[semconv.REQUEST].attributes[semconv.ENTRIES_DROPPED] == 4
