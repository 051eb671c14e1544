"""What no log can make Penstock say: a part outside its whole, a sum above it, two ends of one start, a cost of what did not happen.

The checks take what was made of a log, each kind by itself: the spans, the sentences, the counters.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from penstock.agent.metrics.catalogue import from_log as c
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.model import EventEntry
from penstock.agent.traces.spans.request_history import entry_time
from penstock.proto.names import label
from penstock.proto.v1.common_pb2 import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.agent.metrics.catalogue.metric import Metric
    from penstock.agent.metrics.series.engine import Row
    from penstock.agent.traces.spans.model import Span
    from penstock.proto.v1.events_pb2 import Event

_MOST = (1 << 64) - 1
_SECOND = 1_000_000_000
# Attributes in seconds that are parts of their span.
_PARTS = (
    semconv.DEFERRED_SECONDS,
    semconv.DELAY_SECONDS,
    semconv.START_WAIT_SECONDS,
    semconv.TIME_IN_QUEUE,
    semconv.TIME_TO_FIRST_TOKEN,
)
_COSTS = {
    semconv.TOKENS_KEPT: {"recomputed"},
    semconv.TOKENS_RECOMPUTED: {"recomputed"},
    semconv.ITEMS_RECOMPUTED: {"recomputed"},
    semconv.TOKENS_LOST: {"failed", "aborted"},
    semconv.ITEMS_LOST: {"failed", "aborted"},
}
_LENGTH = r"([\d.e+]+) (ms|s)"
_ENDED = re.compile(rf"it ended \([^)]*\) after {_LENGTH}(?:, deferred for {_LENGTH} of that)?$")
_UNDER_WAY = re.compile(rf"under way for {_LENGTH}(?:, {_LENGTH} of that after the request's end)?")


def check_spans(spans: Iterable[Span]) -> None:
    """Check the spans of one log: each by itself, below its parent, and beside the others."""
    spans = list(spans)
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    twice = Counter((span.name, span.span_id) for span in spans)
    assert len(by_id) == len(spans), [key for key, count in twice.items() if count > 1]
    for span in spans:
        assert 0 <= span.start_unix_nano <= span.end_unix_nano <= _MOST, span
        _check_parts(span)
        parent = by_id.get((span.trace_id, span.parent_span_id))
        if parent is not None:
            _check_child(span, parent)
    _check_deferrals(spans)
    for span in spans:
        if span.name == semconv.REQUEST:
            _check_sum(span, [each for each in spans if each.parent_span_id == span.span_id])


def _check_parts(span: Span) -> None:
    length = (span.end_unix_nano - span.start_unix_nano) / _SECOND
    for name in _PARTS:
        # A load's delay comes before the load, in the request.
        if name == semconv.DELAY_SECONDS and span.name != semconv.REQUEST:
            continue
        assert 0 <= _number(span.attributes.get(name, 0)) <= length, (name, span)
    queued = _number(span.attributes.get(semconv.TIME_IN_QUEUE, 0))
    assert queued <= _number(span.attributes.get(semconv.TIME_TO_FIRST_TOKEN, queued)), span
    if span.error is not None:
        assert semconv.BALANCEDNESS_AFTER not in span.attributes, span
    if span.name == semconv.RECOMPUTE:
        assert semconv.TOKENS_LOST not in span.attributes, span


def _check_child(span: Span, parent: Span) -> None:
    assert span.start_unix_nano >= parent.start_unix_nano, _both(span, parent)
    # What goes on after the request's end says so itself: a lease that is read, a load that no request waits for.
    latest = max(map(entry_time, span.entries), default=0)
    assert span.end_unix_nano <= max(parent.end_unix_nano, latest), _both(span, parent)


def _both(*spans: Span) -> list[object]:
    return [(span.name, span.start_unix_nano, span.end_unix_nano, span.attributes) for span in spans]


def _check_deferrals(spans: list[Span]) -> None:
    """Check that each deferral below a request's span has one end."""
    ends = Counter(
        (span.trace_id, span.parent_span_id, *_deferral(entry.event))
        for span in spans
        if span.name == semconv.DEFERRAL
        for entry in span.entries
        if isinstance(entry, EventEntry) and entry.event.HasField("deferral_end")
    )
    doubled = [key for key, count in ends.items() if count > 1]
    assert not doubled, doubled


def _deferral(event: Event) -> tuple[str, int, int, int]:
    """Return what tells the deferral that *event* ends from all others."""
    body = event.deferral_end
    start = body.start_time_unix_nano
    return (event.request_id, body.reason, start, 0 if start else event.time_unix_nano)


def _check_sum(request: Span, children: list[Span]) -> None:
    """Check the costs of a request against its outcomes, and its time against its parts."""
    outcomes = {
        label(Outcome, entry.event.load_outcome.outcome)
        for span in (request, *children)
        for entry in span.entries
        if isinstance(entry, EventEntry) and entry.event.HasField("load_outcome")
    }
    for name, wanted in _COSTS.items():
        assert name not in request.attributes or outcomes & wanted, (name, request)
    deferred = sum(
        child.end_unix_nano - child.start_unix_nano for child in children if child.name == semconv.DEFERRAL
    )
    assert _number(request.attributes.get(semconv.DEFERRED_SECONDS, 0)) <= deferred / _SECOND, request


def check_sentences(sentences: Iterable[str]) -> None:
    """Check that what each sentence says of time adds up."""
    for sentence in sentences:
        ended, under_way = _ENDED.search(sentence.removesuffix(".")), _UNDER_WAY.search(sentence)
        whole = None
        if ended is not None:
            whole, deferred = _seconds(ended[1], ended[2]), _seconds(ended[3], ended[4])
            assert deferred <= whole, sentence
        if under_way is not None:
            length, after = _seconds(under_way[1], under_way[2]), _seconds(under_way[3], under_way[4])
            assert after <= length, sentence
            # Rounded three times.
            assert whole is None or length - after <= whole * 1.02 + 0.2, sentence


def check_counts(aggregator: Aggregator, events: Iterable[Event]) -> None:
    """Check that each deferral of *events* has one end in the counters."""
    ends = [event for event in events if event.HasField("deferral_end")]
    timed = {_deferral(event) for event in ends if event.deferral_end.start_time_unix_nano}
    rows = _rows(aggregator)
    assert sum(row.total for row in rows[c.DEFERRALS]) == len(set(map(_deferral, ends)))
    assert sum(sum(row.counts) for row in rows[c.DEFERRED_TIME]) == len(timed)


def _rows(aggregator: Aggregator) -> Mapping[Metric, list[Row]]:
    rows: defaultdict[Metric, list[Row]] = defaultdict(list)
    for engine in aggregator.engines():
        for metric, found in engine.rows.items():
            rows[metric] += found
    return rows


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _seconds(number: str | None, unit: str | None) -> float:
    return 0.0 if number is None else float(number) / (1000 if unit == "ms" else 1)
