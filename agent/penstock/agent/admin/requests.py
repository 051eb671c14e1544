"""``ListRequests``: which requests had trouble or wait, from the journal's index and the live snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.agent.admin.convert import key_message, timestamp
from penstock.agent.admin.deferrals import deferred_requests
from penstock.agent.admin.events import MAX_EVENTS, peers_of, since_unix_nano, with_reader
from penstock.agent.admin.scanning import MAX_BYTES, Scan
from penstock.agent.admin.targets import selection_of, source_target
from penstock.agent.errors import ContractError
from penstock.agent.traces.entries import RequestKey, request_entries
from penstock.agent.traces.facts import RequestFacts
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import OUTCOME_RECOMPUTED, OUTCOME_UNSPECIFIED
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from penstock.agent.admin.context import AgentContext
    from penstock.agent.admin.scanning import Found
    from penstock.agent.journal import Reader
    from penstock.agent.selector import Selection
    from penstock.agent.traces.spans import Entry
    from penstock.proto.v1.events_pb2 import LoadOutcome

# Each of these says that the log has heard of a request.
_KINDS = ("request_closed", "load_outcome", "transfer_failure", "deferral_start")
_SORTS = ("", "age", "time")
MAX_REQUESTS = MAX_EVENTS
_DEFAULT_REQUESTS = 100


async def list_requests(
    agent: AgentContext, request: admin.ListRequestsRequest
) -> admin.ListRequestsResponse:
    """Return the newest requests that are asked for, or those that wait now.

    Raises:
        ContractError: an unknown order, a selector that cannot be read, or an outcome of what is not over.

    """
    if request.sort not in _SORTS:
        raise ContractError(
            f"sort {request.sort!r} is no order; use age (oldest first) or time (newest first)"
        )
    if request.deferred and request.outcome:
        raise ContractError("a request that is deferred has no outcome yet; ask for one of the two")
    selection = selection_of(request.selector)
    limit = min(request.limit or _DEFAULT_REQUESTS, MAX_REQUESTS)
    now = agent.clock()
    if request.deferred:
        present = [live for live in agent.registry.sources() if selection.matches(source_target(live.source))]
        response = await with_reader(
            agent,
            lambda reader: deferred_requests(
                reader, present, request.peer, since_unix_nano(request, now), limit
            ),
        )
    else:
        response = await with_reader(
            agent, lambda reader: _known(reader, request, selection, since_unix_nano(request, now), limit)
        )
    by_age = request.sort == "age" or (request.deferred and not request.sort)
    response.requests.sort(key=lambda item: item.since.ToNanoseconds(), reverse=not by_age)
    return response


@dataclass(slots=True)
class _Budget:
    """Bytes of batches that may still be parsed."""

    left: int
    parsed: dict[int, Batch] = field(default_factory=dict)


def _known(
    reader: Reader, request: admin.ListRequestsRequest, selection: Selection, since: int, limit: int
) -> admin.ListRequestsResponse:
    """Find the newest requests by the events that name them, then read what the log says about each."""
    kinds = ("load_outcome",) if request.outcome else _KINDS
    scan = Scan(reader, reader.scan(kinds=kinds, since_unix_nano=since, limit=MAX_EVENTS + 1))
    newest: dict[RequestKey, Found] = {}
    for found in scan:
        if _takes(request, found) and selection.matches(source_target(found.source)):
            newest.setdefault(RequestKey(found.source.key.server, found.event.request_id), found)
        if len(newest) > limit:
            break
    response = admin.ListRequestsResponse(truncated=len(newest) > limit or scan.cut)
    budget = _Budget(MAX_BYTES)
    for key, found in list(newest.items())[:limit]:
        if budget.left <= 0:
            response.truncated = True
            break
        entries = _entries(reader, key, budget)
        asked = found.event.load_outcome if request.outcome else None
        response.requests.append(_summary(RequestFacts.of(key.request_id, entries), asked))
    return response


def _takes(request: admin.ListRequestsRequest, found: Found) -> bool:
    event = found.event
    body = getattr(event, event.WhichOneof("body") or "")
    return (
        bool(event.request_id)
        and (not request.outcome or body.outcome == request.outcome)
        and (not request.peer or request.peer in peers_of(body))
    )


def _entries(reader: Reader, key: RequestKey, budget: _Budget) -> list[Entry]:
    """Return all that the log says about one request."""
    found: list[Entry] = []
    for logged in reader.request_batches(key.request_id):
        source = reader.source(logged.epoch)
        if source is None or source.key.server != key.server:
            continue
        batch = budget.parsed.get(logged.id)
        if batch is None:
            budget.left -= len(logged.body)
            batch = budget.parsed[logged.id] = Batch.FromString(logged.body)
        found += (entry for of, entry in request_entries(source, batch) if of == key)
    return found


def _summary(facts: RequestFacts, asked: LoadOutcome | None) -> admin.RequestSummary:
    """Say what became of a request: of the outcome that was *asked* for, or of the weightiest."""
    outcome = asked if asked is not None else facts.outcome
    cause = outcome if outcome is not None and outcome.mode else facts.cause
    summary = admin.RequestSummary(
        key=key_message(facts.source.key),
        request_id=facts.request_id,
        # The caller's trace context comes with the end of the request.
        trace_id=facts.identity.trace_id if facts.closed is not None else "",
        outcome=outcome.outcome if outcome is not None else OUTCOME_UNSPECIFIED,
        mode=cause.mode if cause is not None else 0,  # type: ignore[arg-type]
        peer=cause.peer if cause is not None and cause.peer.address else facts.peer,
        tokens_recomputed=sum(
            entry.event.load_outcome.tokens_recomputed
            for entry in facts.outcomes
            if entry.event.load_outcome.outcome == OUTCOME_RECOMPUTED
        ),
        since=timestamp(facts.start_unix_nano),
    )
    if facts.closed is not None:
        summary.closed.FromNanoseconds(facts.closed.event.time_unix_nano)
        summary.finish_reason = facts.closed.event.request_closed.finish_reason
    elif facts.open_deferrals:
        summary.deferred = facts.open_deferrals[-1].event.deferral_start.reason
    return summary
