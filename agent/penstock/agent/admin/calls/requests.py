"""``ListRequests``, ``Explain`` and ``ListHolders``: requests, and KV blocks that none of them computes with.

From the journal's index and the live snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.admin.calls.engines import list_engines
from penstock.agent.admin.calls.events import peers_of, read_in_turn, since_unix_nano
from penstock.agent.admin.calls.pairs import other_weights_of
from penstock.agent.admin.lookups import (
    DEFAULT_SLOW,
    MAX_UINT32,
    ORDERS,
    EventScan,
    QueuedRequests,
    RequestLog,
    add_durations,
    clamp_unsigned,
    deferred_requests,
    key_message,
    queued_clauses,
    selected_views,
    selection_of,
    slowest_requests,
    source_target,
    timestamp_message,
)
from penstock.agent.batch import CLEAN_UP, is_clean_up
from penstock.agent.errors import ContractError, NotFoundError
from penstock.agent.journal import STEP_SECONDS, ReadBudget
from penstock.agent.pairs import EncoderStates
from penstock.agent.sources import held_rows
from penstock.agent.traces.query import explain_request
from penstock.agent.traces.spans import EventEntry, RequestFacts, RequestKey
from penstock.proto.names import label
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    DEFERRAL_ENDING_ENGINE_LOST,
    OUTCOME_RECOMPUTED,
    OUTCOME_UNSPECIFIED,
    DeferralEnding,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.admin.lookups import AgentContext, FoundEvent
    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Selection
    from penstock.proto.v1.events_pb2 import LoadOutcome
    from penstock.proto.v1.snapshot_pb2 import HeldBlocks, Snapshot

# Kinds of events that name a request.
_KINDS = ("request_closed", "load_outcome", "transfer_failure", "deferral_start")
# Each costs a read.
MAX_REQUESTS = 10_000
MAX_BYTES = 64 << 20
# Finish reason of a request lost with its engine; vLLM has none.
_LOST = label(DeferralEnding, DEFERRAL_ENDING_ENGINE_LOST)
_DEFAULT_REQUESTS = 100


async def list_requests(
    agent: AgentContext, request: admin.ListRequestsRequest
) -> admin.ListRequestsResponse:
    """Return the newest matching requests, the slowest of them, the deferred ones, or those in a scheduler.

    Raises:
        ContractError: an unknown sort order, an invalid selector, or two of ``deferred``, ``queued``, ``slow`` and an outcome.

    """
    if request.sort and request.sort not in ORDERS:
        raise ContractError(
            f"sort {request.sort!r} is not a sort order; use age (oldest first), time (newest first),"
            " or duration, wait or ttft (slowest first)"
        )
    if request.deferred and request.outcome:
        raise ContractError("a deferred request has no outcome yet; give deferred or outcome")
    if request.queued and (request.deferred or request.slow or request.outcome):
        raise ContractError(
            "queued lists requests that have not ended; give queued, deferred, slow or outcome"
        )
    if request.slow and (request.deferred or request.outcome):
        raise ContractError("slow lists requests of any outcome; give slow, deferred or outcome")
    selection = selection_of(request.selector)
    limit = min(request.limit or _DEFAULT_REQUESTS, MAX_REQUESTS)
    since, now = since_unix_nano(request, agent.clock()), int(agent.clock() * 1e9)
    oldest_first = request.deferred or request.queued
    order = request.sort or ("age" if oldest_first else DEFAULT_SLOW if request.slow else "time")
    present = [
        live
        for live in agent.registry.sources()
        if selection.everything or selection.matches(source_target(live.source))
    ]
    queues = QueuedRequests.of(selected_views(agent, selection))

    def read(reader: Reader) -> admin.ListRequestsResponse:
        if request.queued:
            response = _queued_requests(queues, request.peer, _Times(since, now), limit)
        elif request.deferred:
            response = deferred_requests(reader, present, request.peer, since, limit, now)
        else:
            response = _logged_requests(reader, request, selection, _Times(since, now), limit)
        if not (request.slow or request.outcome):
            _add_queued(response, request, queues, _Times(since, now), limit)
            queues.count_into(response)
        response.requests.sort(key=ORDERS[order])
        return response

    return await read_in_turn(agent, read)


class _Times(NamedTuple):
    """From when events count, and the present; nanoseconds."""

    since: int
    now: int


def _queued_requests(
    queues: QueuedRequests, peer: str, times: _Times, limit: int
) -> admin.ListRequestsResponse:
    """Return the requests in the schedulers, those that came first."""
    found = sorted(queues.summaries(peer, times.since, times.now), key=ORDERS["age"])
    return admin.ListRequestsResponse(requests=found[:limit], truncated=len(found) > limit)


def _add_queued(
    response: admin.ListRequestsResponse,
    request: admin.ListRequestsRequest,
    queues: QueuedRequests,
    times: _Times,
    limit: int,
) -> None:
    """Say of the listed requests where their schedulers have them; a list of the newest takes in those that no log knows."""
    known = queues.by_id()
    listed = set()
    for item in response.requests:
        place = (item.key.server, item.request_id)
        listed.add(place)
        # The log may know more than the last snapshot.
        if place in known and not item.HasField("closed") and not item.finish_reason:
            item.queued.CopyFrom(known[place])
    if request.deferred or request.queued:
        return
    found = [
        each
        for each in queues.summaries(request.peer, times.since, times.now)
        if (each.key.server, each.request_id) not in listed
    ]
    if found:
        newest = sorted([*response.requests, *found], key=ORDERS["time"])
        del response.requests[:]
        response.requests.extend(newest[:limit])
        response.truncated |= len(newest) > limit


def _logged_requests(
    reader: Reader, request: admin.ListRequestsRequest, selection: Selection, times: _Times, limit: int
) -> admin.ListRequestsResponse:
    """Find the newest or the slowest requests by the events that name them, then read the entries of each."""

    def wanted(found: FoundEvent) -> bool:
        return _matches(request, found) and selection.matches(source_target(found.source))

    if request.slow:
        by = request.sort if request.sort in {"duration", "wait"} else DEFAULT_SLOW
        newest, cut = slowest_requests(
            reader, wanted, by=by, since_unix_nano=times.since, now=times.now, limit=limit
        )
    else:
        newest, cut = _newest_requests(reader, request, wanted, times.since, limit)
    response = admin.ListRequestsResponse(truncated=cut)
    allowance = ReadBudget(MAX_BYTES, STEP_SECONDS)
    log = RequestLog(reader, allowance)
    for key, found in newest.items():
        if allowance.ends:
            break
        asked = found.event.load_outcome if request.outcome else None
        # The read budget may end before its first entry.
        entries = log.entries(key) or [EventEntry(found.source, found.event)]
        facts = RequestFacts.of(key.request_id, entries)
        lost = log.lost(facts.source.epoch)
        summary = _summary(facts, asked, engine_lost=lost)
        add_durations(summary, facts, times.now, lost=lost)
        response.requests.append(summary)
    response.truncated = response.truncated or allowance.cut
    response.unreadable_batches = clamp_unsigned(reader.unreadable, MAX_UINT32)
    return response


def _newest_requests(
    reader: Reader,
    request: admin.ListRequestsRequest,
    wanted: Callable[[FoundEvent], bool],
    since: int,
    limit: int,
) -> tuple[dict[RequestKey, FoundEvent], bool]:
    """Return the newest event of each of the newest requests, and whether there are more."""
    kinds = ("load_outcome",) if request.outcome else _KINDS
    scan = EventScan.newest(reader, kinds=kinds, since_unix_nano=since)
    newest: dict[RequestKey, FoundEvent] = {}
    for found in scan:
        if wanted(found):
            newest.setdefault(RequestKey(found.source.key.server, found.event.request_id), found)
        if len(newest) > limit:
            newest.popitem()
            return newest, True
    return newest, scan.cut


def _matches(request: admin.ListRequestsRequest, found: FoundEvent) -> bool:
    event = found.event
    body = getattr(event, event.WhichOneof("body") or "")
    return (
        bool(event.request_id)
        and (not request.outcome or body.outcome == request.outcome)
        and (not request.peer or request.peer in peers_of(body))
    )


def _summary(facts: RequestFacts, asked: LoadOutcome | None, *, engine_lost: bool) -> admin.RequestSummary:
    """Summarize a request by the outcome *asked* for, or by its most severe one."""
    outcome = asked if asked is not None else facts.outcome
    cause = outcome if outcome is not None and outcome.mode else facts.cause
    summary = admin.RequestSummary(
        key=key_message(facts.source.key),
        request_id=facts.request_id,
        # The trace context arrives with the end of the request.
        trace_id=facts.identity.trace_id if facts.closed is not None else "",
        outcome=outcome.outcome if outcome is not None else OUTCOME_UNSPECIFIED,
        mode=cause.mode if cause is not None else 0,  # type: ignore[arg-type]
        peer=cause.peer if cause is not None and cause.peer.address else facts.peer,
        tokens_recomputed=clamp_unsigned(
            sum(
                entry.event.load_outcome.tokens_recomputed
                for entry in facts.outcomes
                if entry.event.load_outcome.outcome == OUTCOME_RECOMPUTED
            )
        ),
        since=timestamp_message(facts.start_unix_nano),
    )
    if facts.closed is not None:
        summary.closed.FromNanoseconds(facts.closed.event.time_unix_nano)
        closing = facts.closed.event.request_closed
        summary.finish_reason = CLEAN_UP if is_clean_up(closing) else closing.finish_reason
    elif engine_lost:
        summary.finish_reason = _LOST
    elif facts.open_deferrals:
        summary.deferred = facts.open_deferrals[-1].event.deferral_start.reason
    return summary


async def list_holders(agent: AgentContext, request: admin.ListHoldersRequest) -> admin.ListHoldersResponse:
    """Return who holds blocks in the selected engines, most blocks of an engine first."""
    response = admin.ListHoldersResponse()
    for view in selected_views(agent, selection_of(request.selector)):
        snapshots = [live.snapshot for live in view.sources if live.connected and live.snapshot is not None]
        if not snapshots:
            response.unknown.append(key_message(view.key))
            continue
        blocks = view.facts.num_gpu_blocks if view.facts is not None else 0
        response.holders.extend(engine_holders(view.key, snapshots, blocks))
    return response


def engine_holders(
    key: EngineKey, snapshots: Iterable[Snapshot], all_blocks: int
) -> list[admin.HolderSummary]:
    """Return who holds blocks of one engine, most blocks first.

    The processes of an engine hold the same requests: as in the metrics, the highest of them counts.

    Args:
        key: the engine.
        snapshots: of its connected processes.
        all_blocks: that the engine has; 0 if not known.

    """
    merged: dict[tuple[int, str], HeldBlocks] = {}
    for snapshot in snapshots:
        for row in held_rows(snapshot):
            present = merged.setdefault((row.holder, row.peer.address), row)
            if present is row:
                continue
            present.requests = max(present.requests, row.requests)
            present.blocks = max(present.blocks, row.blocks)
            starts = {present.oldest_start_time_unix_nano, row.oldest_start_time_unix_nano} - {0}
            present.oldest_start_time_unix_nano = min(starts, default=0)
    found = [_holder_summary(key, row, all_blocks) for row in merged.values() if row.blocks or row.requests]
    return sorted(found, key=lambda row: (-row.blocks, row.holder, row.peer.address))


def _holder_summary(key: EngineKey, row: HeldBlocks, all_blocks: int) -> admin.HolderSummary:
    summary = admin.HolderSummary(
        key=key_message(key),
        holder=row.holder,
        peer=row.peer,
        requests=row.requests,
        blocks=clamp_unsigned(row.blocks),
        oldest=timestamp_message(row.oldest_start_time_unix_nano),
    )
    if all_blocks:
        summary.share = row.blocks / all_blocks
    return summary


async def explain_of(agent: AgentContext, request: admin.GetTraceRequest) -> admin.Explanation:
    """Return one sentence for each cause of one request, also of one that only its scheduler knows yet."""
    weights = await other_weights_of(agent)
    queues = QueuedRequests.of(agent.registry.engines())
    now = int(agent.clock() * 1e9)
    clauses = queued_clauses(queues, agent.stalls(), now)
    engines = await list_engines(agent, admin.ListEnginesRequest(without_counters=True))
    encoders = EncoderStates.of(engines.engines, now, agent.registry.roles.encoder_address)
    try:
        return await read_in_turn(
            agent,
            lambda reader: explain_request(
                reader, request.request_id, agent.policies, weights.evidence, clauses, encoders
            ),
        )
    except NotFoundError:
        named = queues.named(request.request_id)
        if len(named) != 1:
            raise
        key, each = named[0]
        clause = clauses(key.server, each.request_id)
        return admin.Explanation(
            request_id=each.request_id,
            sentences=[f"Request {each.request_id} on engine {key} {clause}; the log has nothing of it yet."],
        )
