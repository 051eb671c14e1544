"""Finding a finished request again in the journal, when it is no longer remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.traces.entries import request_entries
from penstock.agent.traces.facts import RequestFacts
from penstock.agent.traces.sampling import judge
from penstock.agent.traces.state import Limits, Remembered
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.journal import Reader
    from penstock.agent.model import Source
    from penstock.agent.traces.entries import RequestKey


def recall(
    reader: Reader,
    key: RequestKey,
    before: int,
    *,
    sample_ratio: Callable[[Source], float],
    limits: Limits,
) -> Remembered | None:
    """Return what was decided about a request that was closed before batch *before*; None if it was not.

    Only what comes before counts, so that a walk that begins again decides as the first one did.
    """
    entries = []
    for logged in reader.request_batches(key.request_id):
        source = reader.source(logged.epoch) if logged.id < before else None
        if source is not None:
            pairs = request_entries(source, Batch.FromString(logged.body))
            entries += [entry for owner, entry in pairs if owner == key]
    facts = RequestFacts.of(key.request_id, entries)
    if facts.closed is None:
        return None
    ratio = sample_ratio(facts.source)
    return Remembered(facts.identity, judge(facts, facts.identity, ratio, limits.long_deferral_nano))
