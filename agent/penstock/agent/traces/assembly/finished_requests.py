"""Requests whose spans are finished, for the entries that come late: those that are remembered, and a look-up in the journal of the others."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.agent.journal import ReadBudget
from penstock.agent.traces.assembly.model import FinishedRequest
from penstock.agent.traces.assembly.sampling import sample_request
from penstock.agent.traces.assembly.segments import split_segments
from penstock.agent.traces.spans import RequestFacts, request_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.journal import Reader
    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.traces.assembly.model import AssemblyLimits
    from penstock.agent.traces.assembly.sampling import Sampler
    from penstock.agent.traces.spans import RequestKey
    from penstock.proto.v1.ingest_pb2 import Batch

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
