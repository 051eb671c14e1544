"""Pairs the starts and ends of one request's deferrals. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.traces.spans.model import EventEntry

_LOST = common_pb2.DEFERRAL_ENDING_ENGINE_LOST


@dataclass(frozen=True, slots=True)
class RequestDeferral:
    """A deferral: the request waits before it is scheduled.

    Attributes:
        entry: its end; where none has come, its start.
        start_unix_nano: after the end, if a clock was set back.

    """

    entry: EventEntry
    start_unix_nano: int

    @property
    def ended(self) -> bool:
        """Whether its end has come."""
        return self.entry.event.HasField("deferral_end")

    @property
    def reason(self) -> int:
        """What it waits for (``DeferralReason``)."""
        event = self.entry.event
        return event.deferral_end.reason if self.ended else event.deferral_start.reason

    def interval(self, request_end: int) -> tuple[int, int]:
        """Return start and end; without an end it lasts until *request_end*."""
        return self.start_unix_nano, self.entry.event.time_unix_nano if self.ended else request_end


def pair_deferrals(starts: Iterable[EventEntry], ends: Iterable[EventEntry]) -> tuple[RequestDeferral, ...]:
    """Pair *starts* and *ends*, each in the order of time.

    A deferral that the agent ended because its engine was away has a second end if the engine comes back: then the engine's
    own word counts. A request waits for one reason once at a time, so an end that does not say when its deferral
    began belongs to the last start before it.
    """
    opened = list(starts)
    ended: dict[tuple[int, int], RequestDeferral] = {}
    for entry in ends:
        end, time = entry.event.deferral_end, entry.event.time_unix_nano
        start = _start_of(entry, opened)
        if start is not None:
            opened.remove(start)
        began = end.start_time_unix_nano or (time if start is None else start.event.time_unix_nano)
        key = end.reason, began
        earlier = ended.get(key)
        if earlier is None or earlier.entry.event.deferral_end.ending == _LOST:
            ended[key] = RequestDeferral(entry, began)
    return (*ended.values(), *(RequestDeferral(entry, entry.event.time_unix_nano) for entry in opened))


def _start_of(entry: EventEntry, opened: list[EventEntry]) -> EventEntry | None:
    end, time = entry.event.deferral_end, entry.event.time_unix_nano
    mine = [start for start in opened if start.event.deferral_start.reason == end.reason]
    exact = (start for start in mine if start.event.time_unix_nano == end.start_time_unix_nano)
    before = (start for start in reversed(mine) if start.event.time_unix_nano <= time)
    return next(exact, next(before, None))


def covered_time(spans: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """Return how much of the time from *begin* to *end* is covered by *spans*, pairs of start and end."""
    total, reached = 0, begin
    for start, stop in sorted(spans):
        total += max(0, min(stop, end) - max(start, reached))
        reached = max(reached, min(stop, end))
    return total
