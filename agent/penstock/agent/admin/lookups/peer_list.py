"""The answer of ``ListPeers``: which peers, in which order, with a row for those that are asked for only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.judged_peers import judged_peers
from penstock.agent.admin.lookups.known_peers import known_peers
from penstock.agent.admin.lookups.messages import clamp_unsigned, key_message
from penstock.agent.admin.lookups.peer_order import PeerOrder
from penstock.agent.admin.lookups.peers import peer_summaries
from penstock.agent.aio import LetGo
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from penstock.agent.admin.lookups.known_peers import PeerSources
    from penstock.agent.model import EngineKey


def listed_peers(
    sources: PeerSources,
    request: admin.ListPeersRequest,
    since_unix_nano: int,
    *,
    only_suspected: bool = False,
) -> admin.ListPeersResponse:
    """Return the peers that *request* asks for, what is wrong now first. On a thread of its own.

    A peer is retired if its engine does not use it and has no entry for it after *since_unix_nano*, by the agent's clock.
    One that only its engine reports, without any entry, is not. With *only_suspected* there are no rows of peers without
    durations, failures, waits and quarantine; they count in the totals.
    """
    let_go = LetGo()
    known = known_peers(sources, frozenset(request.peers) if request.peers else None, between=let_go)
    retired: dict[EngineKey, frozenset[str]] = {}
    listed: dict[EngineKey, AbstractSet[str]] = {}
    for key, names in known.newest.items():
        let_go()
        since = since_unix_nano + sources.ahead.get(key, 0)
        retired[key] = frozenset(name for name, newest in names.items() if 0 < newest < since)
        states: dict[str, AbstractSet[str]] = {"all": names.keys(), "retired": retired[key]}
        listed[key] = states.get(request.state, names.keys() - retired[key])
    engines = sources.engines()
    judged = judged_peers(sources.diagnosis, sources.away, engines)
    order = PeerOrder(sources, known, listed, judged, between=let_go)
    if only_suspected:
        places = order.suspected()
    elif request.most_peers and request.most_engines:
        places = order.table(request.most_peers, request.most_engines)
    else:
        places = order.first(request.limit)
    summaries = peer_summaries(sources, known.present, places, between=let_go)
    for place, summary in summaries.items():
        let_go()
        key, address = place
        condition = order.condition(place)
        summary.condition, summary.condition_reason = condition.condition, condition.reason
        since = condition.since and clamp_unsigned(condition.since - sources.ahead.get(key, 0))
        if since:
            summary.condition_since.FromNanoseconds(since)
        if address in engines:
            summary.engine.CopyFrom(key_message(engines[address]))
        summary.retired = address in retired[key]
    left_out = sum(map(len, known.newest.values())) - order.totals.rows
    return admin.ListPeersResponse(
        peers=summaries.values(),
        left_out=left_out,
        total=order.totals.rows,
        total_peers=order.totals.addresses,
    )
