"""How long requests take: whole, deferred, and to the first token. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.agent.batch import gate_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.traces.spans import RequestFacts
    from penstock.proto.v1.admin_pb2 import RequestSummary
    from penstock.proto.v1.events_pb2 import RequestClosed

DEFAULT_SLOW = "ttft"


def since_nano(item: RequestSummary) -> int:
    """Return when a request began."""
    return item.since.ToNanoseconds()


def slowness_nano(item: RequestSummary, by: str) -> int:
    """Return the duration that *by* names: ``duration``, ``wait``, or ``ttft``.

    Without a first token its time is the whole duration, or the wait so far.
    """
    if by == "wait":
        return item.wait.ToNanoseconds()
    whole = item.duration.ToNanoseconds() or item.wait.ToNanoseconds()
    return whole if by == "duration" else item.time_to_first_token.ToNanoseconds() or whole


ORDERS: dict[str, Callable[[RequestSummary], int]] = {
    "age": since_nano,
    "time": lambda item: -since_nano(item),
    "duration": lambda item: -slowness_nano(item, "duration"),
    "wait": lambda item: -slowness_nano(item, "wait"),
    "ttft": lambda item: -slowness_nano(item, "ttft"),
}
"""The sort orders of requests, as keys."""


def first_token_nano(closing: RequestClosed) -> int:
    """Return the time from arrival to the first token; 0 if there was none."""
    if not (closing.arrival_time_unix_nano and closing.first_token_time_unix_nano):
        return 0
    return max(0, closing.first_token_time_unix_nano - closing.arrival_time_unix_nano)


def add_durations(summary: RequestSummary, facts: RequestFacts, now: int, *, lost: bool) -> None:
    """Set the durations of a request; an open one lasts until *now*, nanoseconds.

    Args:
        summary: of the request.
        facts: what the log says about it.
        now: the present.
        lost: its engine is gone; it ends with its last entry.

    """
    closing = facts.closing
    if closing is None and not lost:
        # Its open deferrals, too, last until now.
        facts = replace(facts, lost_unix_nano=max(now, facts.end_unix_nano))
    _set(summary, "duration", facts.end_unix_nano - facts.start_unix_nano)
    _set(summary, "wait", facts.deferred_nano)
    if closing is not None:
        _set(summary, "time_to_first_token", first_token_nano(closing))
        times = gate_times(closing)
        for gate, nano in times.largest_first() if times is not None else ():
            summary.gates.add(gate=gate).duration.FromNanoseconds(nano)


def _set(summary: RequestSummary, name: str, nano: int) -> None:
    if nano > 0:
        getattr(summary, name).FromNanoseconds(nano)
