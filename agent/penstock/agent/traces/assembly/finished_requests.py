"""Requests whose spans are finished, for the entries that come late: those that are remembered, and a look-up in the journal of the others."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.journal import ReadBudget
from penstock.agent.traces.assembly.model import FinishedRequest
from penstock.agent.traces.assembly.sampling import sample_request
from penstock.agent.traces.spans import EventEntry, RequestFacts, entry_time, request_entries
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey, LoggedBatch, Source
    from penstock.agent.traces.assembly.model import AssemblyLimits
    from penstock.agent.traces.assembly.sampling import Sampler
    from penstock.agent.traces.spans import Entry, RequestIdentity, RequestKey
    from penstock.proto.v1.ingest_pb2 import Batch


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


# Bytes of memory for each byte of a batch's body, measured: parsed it takes five times as many, and one entry keeps all of it.
_PARSED_BYTES_PER_BODY_BYTE = 5
# Bytes of an entry, beside that.
_ENTRY_BYTES = 512
# Bytes of a request that is remembered, beside its ids, which take up to four bytes a character.
_REMEMBERED_BYTES = 1024
_CHARACTER_BYTES = 4
# Bytes of the newest batches that name the request: all are in memory, parsed, at once. It is some fifty full ones.
_LOOKED_UP_BYTES = 8 << 20


class PendingBytes:
    """Counts the bytes of pending entries and of the batches that contain them."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def add(self, batch: int, size: int) -> None:
        """Count an entry of *batch*, whose body has *size* bytes."""
        if batch not in self._users:
            self._users[batch], self._sizes[batch] = 0, _PARSED_BYTES_PER_BODY_BYTE * size
            self.bytes += self._sizes[batch]
        self._users[batch] += 1
        self.bytes += _ENTRY_BYTES

    def release(self, batches: Iterable[int]) -> None:
        """Stop counting one entry of each of *batches*."""
        for batch in batches:
            self.bytes -= _ENTRY_BYTES
            self._users[batch] -= 1
            if not self._users[batch]:
                del self._users[batch]
                self.bytes -= self._sizes.pop(batch)


class FinishedRequests:
    """A cache of finished requests, for their late entries; evicts the oldest.

    Args:
        most: maximum number.
        max_bytes: approximate maximum of memory.

    """

    def __init__(self, most: int, max_bytes: int) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._requests: OrderedDict[RequestKey, FinishedRequest] = OrderedDict()
        self.bytes = 0

    def get(self, key: RequestKey) -> FinishedRequest | None:
        """Return a request; None if it was evicted or never finished."""
        return self._requests.get(key)

    def put(self, key: RequestKey, done: FinishedRequest) -> None:
        """Add a request as the newest."""
        old = self._requests.pop(key, None)
        if old is not None:
            self.bytes -= _weight(key, old)
        self._requests[key] = done
        self.bytes += _weight(key, done)
        while len(self._requests) > self._most or self.bytes > self._max_bytes:
            self.bytes -= _weight(*self._requests.popitem(last=False))

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self._requests)


def _weight(key: RequestKey, done: FinishedRequest) -> int:
    identity = done.identity
    characters = sum(map(len, (*key, identity.request_id, identity.prefill_request_id, identity.tracestate)))
    return _REMEMBERED_BYTES + _CHARACTER_BYTES * characters


def find_finished_request(
    reader: Reader,
    key: RequestKey,
    now: LoggedBatch,
    *,
    sampler: Callable[[Source], Sampler],
    limits: AssemblyLimits,
) -> FinishedRequest | None:
    """Return the request as it was finished before the batch *now*; None if it was not closed by then.

    Reads only older batches, so that a walk that begins again decides as the first one did.
    """
    earlier = [
        (logged, source, reader.parse(logged))
        for logged in reader.request_batches(key.request_id, now.id, ReadBudget(_LOOKED_UP_BYTES))
        if (source := reader.source(logged.epoch)) is not None
    ]
    # Most often it was not closed: then its entries need not be taken out of their batches.
    if not any(_closes(key, source, batch) for _, source, batch in earlier):
        return None
    found = (
        (logged, entry)
        for logged, source, batch in earlier
        for owner, entry in request_entries(source, batch)
        if owner == key
    )
    segments = split_segments(found, limits)
    end, last = next(segment for segment in segments if segment.ended), segments[-1]
    facts = RequestFacts.of(key.request_id, end.entries)
    decision = sample_request(facts, facts.identity, sampler(facts.source), limits.long_deferral_nano)
    running = now.received_unix_nano - last.closed_unix_nano
    if running >= limits.grace_nano:
        return FinishedRequest(facts.identity, decision)
    return FinishedRequest(facts.identity, decision, last.closing_batch, running)


def _closes(key: RequestKey, source: Source, batch: Batch) -> bool:
    return source.key.server == key.server and any(
        event.request_id == key.request_id and event.HasField("request_closed") for event in batch.events
    )
