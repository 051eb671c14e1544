"""The assembler: when a request finishes, and what belongs to it."""

from __future__ import annotations

import pytest
from penstock.agent.traces.assembly import assembler as assemble
from penstock.agent.traces.assembly import finished_requests
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.spans import STANDALONE_KINDS, ids, semconv
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import TIME, deferral_start
from tests.support.agent.fold import GRACE, Fold
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    NOT_SAMPLED,
    PREFILL,
    PREFILL_CORE,
    SECOND,
    SOURCES,
    Log,
    closed,
    closed_decode,
    decode_story,
    failed_load,
    lease,
    lost,
    sample,
    source,
)


def test_the_grace_is_waited_out_in_the_logs_time():
    """Entries within the grace period belong to the request; its time is the later of log and clock."""
    log = Log()
    log.add(DECODE_CORE, closed_decode())
    log.add(DECODE_WORKER, sample(DECODE), after=GRACE - MS)
    fold = Fold(log).walk()
    assert fold.finished == []
    assert fold.assembler.advance(log.now) == []
    (finished,) = fold.assembler.advance(log.now + MS)
    assert [span.name for span in finished.spans] == [semconv.REQUEST, semconv.KV_LOAD]
    assert (finished.closing_batch, finished.first_batch, fold.assembler.low) == (1, 1, 3)


def test_a_clock_that_steps_does_not_hold_spans_up():
    """After a step of a day in the wall clock the grace period is unchanged."""
    log = Log()
    log.add(DECODE_CORE, closed("before-aaaaaaaa"))
    log.add(DECODE_CORE, closed("ahead-bbbbbbbb"), after=86_400 * SECOND)
    log.add(DECODE_CORE, closed("back-cccccccc"), after=-86_400 * SECOND)
    fold = Fold(log).walk()
    assert [span.request_id for span in fold.spans] == ["before-aaaaaaaa"]
    fold.finished += fold.assembler.advance(log.now + GRACE)
    assert [span.request_id for span in fold.spans][1:] == ["ahead-bbbbbbbb", "back-cccccccc"]


def late_lease(fold_ratio: float = 1.0, *, remembered: bool = True, expired: bool = False, **closing):
    """Assemble a lease that ends a minute after its request; return the spans of both."""
    log = Log()
    log.add(PREFILL_CORE, closed(PREFILL, kv_role=common_pb2.ROLE_PREFILL, **closing))
    log.add(PREFILL_CORE, closed("other-eeeeeeee"), after=60 * SECOND)
    log.add(PREFILL_CORE, lease(expired=expired), after=60 * SECOND)
    limits = AssemblyLimits() if remembered else AssemblyLimits(max_remembered=0)
    fold = Fold(log, fold_ratio, limits).walk().rest()
    return [span for span in fold.spans if span.request_id == PREFILL]


@pytest.mark.parametrize("remembered", [True, False])
def test_what_comes_late_is_a_span_below_the_finished_request(remembered):
    """A lease that ends after the grace period has the same trace and parent as one that ends within it."""
    request, held = late_lease(remembered=remembered)
    assert (request.name, held.name) == (semconv.REQUEST, semconv.KV_LEASE)
    assert (held.trace_id, held.parent_span_id) == (request.trace_id, request.span_id)


@pytest.mark.parametrize("remembered", [True, False])
def test_late_trouble_of_a_request_that_was_left_out(remembered):
    """Its request was not exported: the span is kept, without a parent, and marked."""
    assert late_lease(0.0, remembered=remembered) == []
    (held,) = late_lease(0.0, remembered=remembered, expired=True)
    assert held.parent_span_id == ""
    assert held.attributes[semconv.SAMPLING] == "forced"
    (held,) = late_lease(remembered=remembered, expired=True, traceparent=NOT_SAMPLED)
    assert (held.trace_id, held.parent_span_id) == (NOT_SAMPLED[3:35], "")


def test_a_lost_engine_ends_what_it_left_open():
    """A loss marks the engine's open requests and ends its deferrals; other engines' stay open."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME, remote_request_id=PREFILL))
    log.add(PREFILL_CORE, deferral_start("p-aaaaaaaa", time_ns=TIME))
    log.add(DECODE_CORE, lost(DECODE_CORE, last_seen=TIME + SECOND))
    fold = Fold(log).walk().rest()
    request, wait = fold.spans
    assert request.attributes[semconv.ENGINE_LOST] is True
    assert request.trace_id == ids.trace_id(PREFILL)
    assert request.end_unix_nano == wait.end_unix_nano == TIME + SECOND
    assert wait.attributes[semconv.ENDING] == "engine_lost"
    assert fold.assembler.low == 2


def test_a_worker_that_is_lost_ends_nothing():
    """Requests belong to the process with the scheduler."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE))
    log.add(DECODE_CORE, lost(DECODE_WORKER))
    assert Fold(log).walk().rest().spans == []


def test_the_next_life_of_an_engine_is_not_ended_with_the_last():
    """A loss detected after the engine's return leaves its new requests open."""
    log = Log()
    again = source(31, "decode", "decode")
    SOURCES_BOTH = {**SOURCES, 31: again}  # noqa: N806
    log.add(again, deferral_start("new-aaaaaaaa", time_ns=TIME + 2 * SECOND))
    log.add(DECODE_CORE, lost(DECODE_CORE, last_seen=TIME + SECOND))
    assembler = Assembler(SOURCES_BOTH.get)
    for logged in log.batches:
        assert assembler.apply(logged) == []
    assert assembler.advance(log.now + 10 * GRACE) == []


def test_a_goodbye_ends_requests_too():
    """A goodbye finishes the open requests of its engine."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE))
    log.add(DECODE_CORE, goodbye={"reason": "exit"})
    request, _ = Fold(log).walk().rest().spans
    assert request.attributes[semconv.ENGINE_LOST] is True


def test_a_goodbye_ends_its_own_epoch_only():
    """Another process's goodbye under the engine's name leaves the engine's requests open."""
    stranger = source(66, "decode", "decode")
    known = {**SOURCES, 66: stranger}
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE))
    log.add(stranger, deferral_start("s-aaaaaaaa"))
    log.add(stranger, goodbye={"reason": "exit"})
    assembler = Assembler(known.get)
    for logged in log.batches:
        assembler.apply(logged)
    finished = assembler.advance(log.now + 10 * GRACE)
    assert {span.request_id for item in finished for span in item.spans} == {"s-aaaaaaaa"}
    log.add(DECODE_CORE, closed(DECODE))
    assert assembler.apply(log.batches[-1]) == []
    (told,) = assembler.advance(log.now + 20 * GRACE)
    assert not any(semconv.ENGINE_LOST in span.attributes for span in told.spans)


def test_a_lost_engine_ends_what_only_its_worker_told():
    """A failure reported by the worker alone is finished with the lost EngineCore."""
    log = Log()
    log.add(DECODE_WORKER, failed_load())
    log.add(DECODE_CORE, lost(DECODE_CORE, last_seen=TIME + SECOND))
    assert [span.name for span in Fold(log).walk().rest().spans]


@pytest.mark.parametrize("part", ["standalone_spans", "entry_time", "request_spans"])
def test_an_entry_that_no_span_can_be_made_of_costs_itself(monkeypatch, part):
    """An exception about one entry or one request leaves the rest of the batch intact."""
    log = Log()
    bad = closed("bad-aaaaaaaa")
    log.add(DECODE_CORE, closed("first-cccccccc"), bad, closed("last-bbbbbbbb"))
    module = finished_requests if part == "entry_time" else assemble
    original = getattr(module, part)

    def broken(about, *args, **kwargs):
        if "bad" in (about.request_id if part == "request_spans" else about.event.request_id):
            raise OverflowError("boom")
        return original(about, *args, **kwargs)

    monkeypatch.setattr(module, part, broken)
    monkeypatch.setattr(assemble, "STANDALONE_KINDS", {*STANDALONE_KINDS, "request_closed"})
    errors: list[Exception] = []
    assembler = Assembler(SOURCES.get, on_error=errors.append)
    finished = assembler.apply(log.batches[0]) + assembler.advance(log.now + 10 * GRACE)
    told = {span.request_id for item in finished for span in item.spans}
    assert [str(error) for error in errors] == ["boom"]
    assert told == {"first-cccccccc", "last-bbbbbbbb"} | (
        {"bad-aaaaaaaa"} if part == "standalone_spans" else set()
    )
    assert assembler._holding.bytes == 0


def test_two_servers_of_a_pod_may_use_the_same_id():
    """Two servers with one request id have two requests, as with vLLM's ids not randomized."""
    log = Log()
    log.add(PREFILL_CORE, closed("same", kv_role=common_pb2.ROLE_PREFILL))
    log.add(DECODE_CORE, closed_decode("same", "same"))
    log.add(DECODE_WORKER, sample("same"))
    prefill, decode, load = Fold(log).walk().rest().spans
    assert (prefill.source, decode.source) == (PREFILL_CORE, DECODE_CORE)
    assert load.parent_span_id == decode.span_id != prefill.span_id
    assert load.links[0].span_id == prefill.span_id


def test_what_was_sampled_out_is_counted():
    """The status counts the spans that sampling left out."""
    log = Log()
    log.tell(decode_story())
    finished = Fold(log, ratio=0.0).walk().rest().finished
    assert sum(item.sampled_out for item in finished) == 4


def test_a_batch_of_an_unknown_source():
    """A batch whose source has no row gives spans."""
    log = Log()
    log.add(source(99, "x", "decode"), failed_load(), closed_decode())
    assembler = Assembler(lambda _epoch: None)
    assembler.apply(log.batches[0])
    (finished,) = assembler.advance(log.now + GRACE)
    assert [span.source.process for span in finished.spans] == ["unknown"] * 2
