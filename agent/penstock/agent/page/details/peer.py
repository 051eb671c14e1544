"""One peer as one engine sees it: what ``agentctl describe peer`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import engine_of, name_of, selector_of
from penstock.agent.page.details.detail import Detail, sentences, table_section, text_section
from penstock.agent.page.wire import AdminCalls, AnswerError, about, plain
from penstock.agent.views.pairs import pairs as pair_table
from penstock.agent.views.peers import peer_description, peer_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVENTS = 20


async def peer_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return the windows, failures, quarantines and last failures of a peer."""
    peer, key = name_of(query, "peer"), engine_of(query, "engine")
    selector = selector_of(key)
    listed = await calls.call(
        "ListPeers", admin.ListPeersRequest(selector=selector, state="all", peers=[peer])
    )
    found = [item for item in listed.peers if item.peer.address == peer]
    if not found:
        raise AnswerError(404, f"peer {peer!r} not found; 'agentctl get peers --state all' lists them")
    quarantines = (
        await calls.call("ListQuarantines", admin.ListQuarantinesRequest(selector=selector))
    ).quarantines
    request = admin.ListEventsRequest(selector=selector, peer=peer, kinds=["transfer_failure"], limit=_EVENTS)
    failures = sorted(
        (await calls.call("ListEvents", request)).events, key=lambda item: item.event.time_unix_nano
    )
    orders = [item for item in quarantines if item.peer.address == peer]
    _, *lines = peer_description(found, orders, failures, calls.clock())
    pairs = [
        item
        for item in (await calls.call("ListPairs", admin.ListPairsRequest())).pairs
        if item.peer.address == peer and (key is None or item.key == key)
    ]
    return Detail(
        title=plain(f"Peer {peer_words(found[0])}"),
        sentences=sentences([item.condition_reason for item in found if item.condition_reason]),
        command=about("describe", "peer", name=peer),
        sections=(
            text_section("As the engine sees it", lines),
            table_section("Pair", pair_table(pairs), sentence="" if pairs else "no pair of engines is known"),
        ),
    )
