"""Splits the entries of a request into segments: groups of entries whose spans are finished together. Pure.

The first ends with the request and the grace for what other processes still report. What
comes after that is a segment of its own. So is what came before, if its engine was lost or it was closed early.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.traces.spans import EventEntry, entry_time
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.model import EngineKey, LoggedBatch
    from penstock.agent.traces.assembly.model import AssemblyLimits
    from penstock.agent.traces.spans import Entry, RequestFacts, RequestIdentity


class EngineLoss(NamedTuple):
    """The EngineCore with this epoch disconnected or vanished."""

    engine: EngineKey
    epoch: int
    last_seen_unix_nano: int


@dataclass(slots=True)
class Segment:
    """Entries of one request whose spans are finished together.

    Attributes:
        began_unix_nano: when its first entry was made.
        core: epoch of the EngineCore that reported it first; 0 while none has.
        late: the request ended in an earlier one.
        ended: it holds the end of the request.
        closing_batch: the batch that closed it; 0 while it is open. What comes within the grace belongs to it.
        closed_unix_nano: when that was received.
        lost_unix_nano: when its engine vanished before the request ended; 0 if it did not.

    """

    engine: EngineKey
    began_unix_nano: int
    first_batch: int
    late: bool
    core: int = 0
    entries: list[Entry] = field(default_factory=list)
    ended: bool = False
    closing_batch: int = 0
    closed_unix_nano: int = 0
    lost_unix_nano: int = 0

    @classmethod
    def begin(cls, entry: Entry, logged: LoggedBatch, *, late: bool) -> Segment:
        """Return the segment that *entry* of the batch *logged* opens; it is empty."""
        return cls(entry.source.key, entry_time(entry), logged.id, late)

    def add(self, entry: Entry, logged: LoggedBatch) -> bool:
        """Add an entry of the batch *logged*; returns whether that closes it."""
        if not self.engine.engine:
            self.engine = entry.source.key
        if not self.core and entry.source.process == ENGINE_CORE:
            self.core = entry.source.epoch
        self.entries.append(entry)
        ends = isinstance(entry, EventEntry) and entry.event.HasField("request_closed")
        self.ended = self.ended or ends
        return (ends or self.late) and self.close(logged.id, logged.received_unix_nano)

    def on_engine_loss(self, loss: EngineLoss, logged: LoggedBatch) -> bool:
        """Close it if its EngineCore is gone; returns whether that closed it.

        A request that only other processes reported ends with the engine; those of the engine's next start are younger.
        """
        if self.core:
            mine = self.core == loss.epoch
        else:
            mine = self.engine == loss.engine and self.began_unix_nano <= loss.last_seen_unix_nano
        if not (mine and self.close(logged.id, logged.received_unix_nano)):
            return False
        self.lost_unix_nano = loss.last_seen_unix_nano
        return True

    def close(self, batch: int, received_unix_nano: int) -> bool:
        """Close it with a batch; False if it was closed already."""
        if self.closing_batch:
            return False
        self.closing_batch, self.closed_unix_nano = batch, received_unix_nano
        return True

    def grace_is_over(self, logged: LoggedBatch, grace_nano: int) -> bool:
        """Return whether its grace is over when the batch *logged* is received."""
        return bool(self.closing_batch) and logged.received_unix_nano >= self.closed_unix_nano + grace_nano

    def identity(
        self, facts: RequestFacts, ended: RequestIdentity | None
    ) -> tuple[RequestIdentity, str | None]:
        """Return what the ids of its spans are made of, and their parent; None if it has the request's span itself.

        Only the end of a request has the request's own ids, and what is still open, as it may be that. All else
        can come beside it, so its ids contain its first batch: no two segments share one.

        Args:
            facts: what its entries say.
            ended: of the request's end, if an earlier segment has it: then the parent is the span
                of that; else None, as this segment has the request's span itself.

        """
        apart = self.first_batch if self.closing_batch and (self.late or not self.ended) else 0
        if ended is None or self.ended:
            return replace(facts.identity, apart=apart), None
        return replace(ended, apart=apart), ended.span_id


def split_segments(
    log: Iterable[tuple[LoggedBatch, Entry | EngineLoss | None]], limits: AssemblyLimits
) -> list[Segment]:
    """Return the segments of a request as the export makes them, except where it closed requests early for memory.

    Args:
        log: entries of the request and losses of engines, in the order of the log; None only advances the time.
        limits: those of the export.

    """
    segments: list[Segment] = []
    since = 0
    for logged, item in log:
        segment = segments[-1] if segments else None
        if segment is not None and logged.received_unix_nano >= since + limits.max_age_nano:
            segment.close(logged.id, since + limits.max_age_nano)
        if isinstance(item, EngineLoss):
            if segment is not None:
                segment.on_engine_loss(item, logged)
        elif item is not None:
            if segment is None or segment.grace_is_over(logged, limits.grace_nano):
                late = any(earlier.ended for earlier in segments)
                if late and isinstance(item, EventEntry) and item.event.HasField("handshake"):
                    continue  # It links to nothing any more.
                segment, since = Segment.begin(item, logged, late=late), logged.received_unix_nano
                segments.append(segment)
            segment.add(item, logged)
    return segments
