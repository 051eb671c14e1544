"""Properties of the assembler: any order, any split, any restart, any memory limit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.spans.model import SampleEntry

from tests.support.agent.batches import TIME, deferral_start
from tests.support.agent.fold import GRACE, Fold
from tests.support.agent.stories import (
    DECODE_CORE,
    MS,
    PREFILL_CORE,
    SECOND,
    Log,
    closed,
    closed_decode,
    failed_story,
    lost,
    prefill_story,
)

STORIES = [*prefill_story(), *failed_story(), (PREFILL_CORE, closed("other-eeeeeeee"))]


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
    exported = max((item.closing_batch for item in before.finished), default=0)
    after = Fold(log, ratio, delivered=exported).walk(after=before.assembler.low - 1).rest()
    again = [item for item in after.finished if item.closing_batch > exported]
    spans = [*before.spans, *(span for item in again for span in item.spans)]
    assert sorted(map(story, spans)) == sorted(map(story, whole.spans))


@given(logs((DECODE_CORE, lost(DECODE_CORE)), pauses=(*PAUSES, -SECOND)))
@settings(max_examples=40, deadline=None)
def test_closings_come_in_the_order_of_the_log(log):
    """Requests finish in the log's order, so that one cursor is enough."""
    closings = [item.closing_batch for item in Fold(log).walk().rest().finished]
    assert all(first <= second for first, second in pairwise(closings))


@given(logs((DECODE_CORE, lost(DECODE_CORE)), pauses=(*PAUSES, -SECOND)))
@settings(max_examples=40, deadline=None)
def test_no_span_names_a_parent_that_is_not_exported(log):
    """Each of our parents is exported; span ids are unique."""
    spans = Fold(log, ratio=0.0).walk().rest().spans
    names_of = {span.span_id for span in spans}
    assert all(span.parent_span_id in names_of for span in spans if span.parent_span_id)
    assert len(names_of) == len(spans)


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
    exported = max((item.closing_batch for item in before.finished), default=0)
    exported = min(exported, before.assembler.settled)
    after = Fold(log, limits=limits).walk(after=before.assembler.low - 1).rest()
    again = [item for item in after.finished if item.closing_batch > exported]
    assert entries_of([*before.finished, *again]) >= entries_of(whole.finished)
    for finished in (before.finished, again):
        closings = [item.closing_batch for item in finished]
        assert closings == sorted(closings)
    # A deferral is still open; with room it waits for its end.
    waiting = sum(len(request.batches) for request in after.assembler._requests.values())
    assert (after.assembler._holding.bytes == 0) is (waiting == 0)
