"""Looks up in the journal a finished request that :class:`FinishedRequests` has evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.journal import ReadBudget
from penstock.agent.traces.assembly.model import FinishedRequest
from penstock.agent.traces.assembly.sampling import sample_request
from penstock.agent.traces.assembly.segments import split_segments
from penstock.agent.traces.spans import RequestFacts, request_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.journal import Reader
    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.traces.assembly.model import AssemblyLimits
    from penstock.agent.traces.assembly.sampling import Sampler
    from penstock.agent.traces.spans import RequestKey
    from penstock.proto.v1.ingest_pb2 import Batch


# Of the newest batches that name the request: all are in memory, parsed, at once. It is some fifty full ones.
_BYTES = 8 << 20


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
        for logged in reader.request_batches(key.request_id, now.id, ReadBudget(_BYTES))
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
    return FinishedRequest(facts.identity, decision, last.closed_at, running)


def _closes(key: RequestKey, source: Source, batch: Batch) -> bool:
    return source.key.server == key.server and any(
        event.request_id == key.request_id and event.HasField("request_closed") for event in batch.events
    )
