"""The assembler: the same spans for any order, any split and any restart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.journal.database.batch_parser import parse_batch
from penstock.agent.traces.assembly import assembler as assemble
from penstock.agent.traces.assembly import segments
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.late_lookup import find_finished_request
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.spans import STANDALONE_KINDS, ids, semconv
from penstock.agent.traces.spans.model import SampleEntry
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import TIME, deferral_start
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
    failed_story,
    lease,
    lost,
    prefill_story,
    sample,
    source,
)

GRACE = AssemblyLimits().grace_nano
STORIES = [*prefill_story(), *failed_story(), (PREFILL_CORE, closed("other-eeeeeeee"))]


class Fold:
    """An assembler over a log in memory, which looks up finished requests in that log."""

    def __init__(
        self, log: Log, ratio: float = 1.0, limits: AssemblyLimits | None = None, delivered: int = 0
    ) -> None:
        self.log = log
        self.limits = limits or AssemblyLimits()
        self.ratio = ratio
        self.assembler = Assembler(
            self.source,
            find_finished=self.look_up,
            sample_ratio=lambda _source: ratio,
            limits=self.limits,
            delivered=delivered,
        )
        self.finished: list[Any] = []

    def look_up(self, key, logged):
        """Read the log as the export reads the journal."""
        reader: Any = self
        return find_finished_request(
            reader, key, logged, sample_ratio=lambda _source: self.ratio, limits=self.limits
        )

    def request_batches(self, request_id, before, allowance):
        """Return the batches of requests, as the journal's reader does."""
        return [logged for logged in self.log.batches if logged.id < before]

    def parse(self, logged):
        """Do what the journal's reader does."""
        return parse_batch(logged)

    def source(self, epoch):
        """Do what the journal's reader does."""
        return SOURCES.get(epoch)

    def walk(self, after: int = 0, last: int | None = None) -> Fold:
        """Apply the batches from *after* on, to *last*."""
        for logged in self.log.batches[after:last]:
            self.finished += self.assembler.apply(logged)
        return self

    def rest(self) -> Fold:
        """Advance the clock beyond the end of the log."""
        self.finished += self.assembler.advance(self.log.now + 10 * GRACE)
        return self

    @property
    def spans(self):
        """All spans so far."""
        return [span for item in self.finished for span in item.spans]


def story(span):
    """Return a span's content without its position in the log."""
    return (
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        span.start_unix_nano,
        span.end_unix_nano,
        span.error,
        sorted(span.attributes.items()),
        span.links,
        span.source.epoch,
        len(span.entries),
    )


def told(entries, cuts=frozenset()):
    """Assemble *entries* in order; those of one source share a batch unless cut."""
    log = Log()
    together: list[Any] = []
    for index, (teller, entry) in enumerate(entries):
        if together and (index in cuts or together[0][0] != teller):
            log.add(together[0][0], *(each for _, each in together))
            together = []
        together.append((teller, entry))
    log.add(together[0][0], *(each for _, each in together))
    return sorted(map(story, Fold(log).walk().rest().spans))


@given(st.permutations(STORIES), st.frozensets(st.integers(0, len(STORIES))))
@settings(max_examples=60, deadline=None)
def test_any_order_and_any_split_give_the_same_spans(entries, cuts):
    """Within the grace period the order of the processes' batches does not change the spans."""
    assert told(entries, cuts) == told(STORIES)


PAUSES = (MS, GRACE // 2, GRACE - MS, 2 * GRACE)


@st.composite
def logs(draw, *more, pauses=PAUSES):
    """Draw a log of several requests, with pauses longer than the grace period, so that some entries come late."""
    log = Log()
    entries = draw(st.permutations([*STORIES, (DECODE_CORE, deferral_start("new-ffffffff")), *more]))
    for teller, entry in entries:
        log.add(teller, entry, after=draw(st.sampled_from(pauses)))
    return log


@given(logs((DECODE_CORE, closed_decode(time_ns=TIME + SECOND))), st.sampled_from((0.0, 1.0)), st.data())
@settings(max_examples=80, deadline=None)
def test_a_walk_that_begins_again_sends_the_rest_and_nothing_twice(log, ratio, data):
    """After a restart at the cursor, the spans before and after are those of one walk."""
    whole = Fold(log, ratio).walk().rest()
    cut = data.draw(st.integers(0, len(log.batches)))
    before = Fold(log, ratio).walk(last=cut)
    exported = max((item.closed_at for item in before.finished), default=0)
    after = Fold(log, ratio, delivered=exported).walk(after=before.assembler.low - 1).rest()
    again = [item for item in after.finished if item.closed_at > exported]
    spans = [*before.spans, *(span for item in again for span in item.spans)]
    assert sorted(map(story, spans)) == sorted(map(story, whole.spans))


@given(logs((DECODE_CORE, lost(DECODE_CORE)), pauses=(*PAUSES, -SECOND)))
@settings(max_examples=40, deadline=None)
def test_closings_come_in_the_order_of_the_log(log):
    """Requests finish in the log's order, so that one cursor is enough."""
    closings = [item.closed_at for item in Fold(log).walk().rest().finished]
    assert all(first <= second for first, second in pairwise(closings))


@given(logs((DECODE_CORE, lost(DECODE_CORE)), pauses=(*PAUSES, -SECOND)))
@settings(max_examples=40, deadline=None)
def test_no_span_names_a_parent_that_is_not_exported(log):
    """Each of our parents is exported; span ids are unique."""
    spans = Fold(log, ratio=0.0).walk().rest().spans
    names_of = {span.span_id for span in spans}
    assert all(span.parent_span_id in names_of for span in spans if span.parent_span_id)
    assert len(names_of) == len(spans)


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
    assert (finished.closed_at, finished.first_batch, fold.assembler.low) == (1, 1, 3)


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
    """Its unfinished requests are marked and its deferrals end; the other engine's continue."""
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


def entries_of(items):
    """Return the entries that finished spans show; a deferral's end includes its start."""
    entries = [entry for item in items for span in item.spans for entry in span.entries]
    return {
        (entry.source.epoch, repr(entry.body))
        for entry in entries
        if isinstance(entry, SampleEntry) or not entry.body.HasField("deferral_start")
    }


@given(logs(), st.integers(0, 20_000), st.data())
@settings(max_examples=80, deadline=None)
def test_a_bound_on_the_memory_loses_no_entry(log, most, data):
    """For any memory limit, over a restart: each entry is exported in order, and pending entries stay within the limit."""
    limits = AssemblyLimits(max_bytes=most)
    cut = data.draw(st.integers(0, len(log.batches)))
    whole = Fold(log).walk().rest()
    before = Fold(log, limits=limits)
    for index in range(cut):
        before.walk(index, index + 1)
        assert before.assembler._holding.bytes <= most
    exported = max((item.closed_at for item in before.finished), default=0)
    exported = min(exported, before.assembler.settled)
    after = Fold(log, limits=limits).walk(after=before.assembler.low - 1).rest()
    again = [item for item in after.finished if item.closed_at > exported]
    assert entries_of([*before.finished, *again]) >= entries_of(whole.finished)
    for finished in (before.finished, again):
        closings = [item.closed_at for item in finished]
        assert closings == sorted(closings)
    # A deferral is still open; with room it waits for its end.
    waiting = sum(len(request.batches) for request in after.assembler._requests.values())
    assert (after.assembler._holding.bytes == 0) is (waiting == 0)


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


@pytest.mark.parametrize("part", ["standalone_spans", "entry_time", "request_spans"])
def test_an_entry_that_no_span_can_be_made_of_costs_itself(monkeypatch, part):
    """An exception about one entry or one request leaves the rest of the batch intact."""
    log = Log()
    bad = closed("bad-aaaaaaaa")
    log.add(DECODE_CORE, closed("first-cccccccc"), bad, closed("last-bbbbbbbb"))
    module = segments if part == "entry_time" else assemble
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
