"""The panel of a peer: what is wrong since when, its minutes, who reads it, what failed by kind, and what the policy does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import engine_of, name_of, selector_of
from penstock.agent.page.details.detail import (
    Detail,
    MinutesSection,
    sentences,
    table_section,
    text_section,
)
from penstock.agent.page.details.tables import (
    condition_sentence,
    failed_section,
    failures_request,
    is_wrong,
    loads_policy_section,
    readers_section,
)
from penstock.agent.page.wire import AdminCalls, AnswerError, about, plain
from penstock.agent.views import text
from penstock.agent.views.peers import pair_rows, peer_description, peer_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping


async def peer_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return the panel of a peer of one engine, or of the engine that has it worst.

    Raises:
        AnswerError: no such peer is known, or nobody answers.

    """
    peer, key = name_of(query, "peer"), engine_of(query, "engine")
    listed = await calls.call("ListPeers", admin.ListPeersRequest(state="all", peers=[peer]))
    readers = [item for item in listed.peers if item.peer.address == peer]
    found = [item for item in readers if key is None or item.key == key]
    if not found:
        raise AnswerError(404, f"peer {peer!r} not found; 'agentctl get peers --state all' lists them")
    whose = found[0].key
    selector, now = selector_of(key), calls.clock()
    quarantines = await calls.call("ListQuarantines", admin.ListQuarantinesRequest(selector=selector))
    failures = await calls.call("ListEvents", failures_request(selector, peer))
    policy = await loads_policy_section(calls, whose)
    pairs = [
        item
        for item in (await calls.call("ListPairs", admin.ListPairsRequest())).pairs
        if item.peer.address == peer and (key is None or item.key == key)
    ]
    orders = [item for item in quarantines.quarantines if item.peer.address == peer]
    _, *lines = peer_description(found, orders, [], now)
    engine = plain(text.engine(key)) if key is not None else ""
    return Detail(
        title=plain(f"Peer {peer_words(found[0])}"),
        sentences=sentences([condition_sentence(found[0], now), *_elsewhere(readers)]),
        command=about("describe", "peer", name=peer),
        sections=(
            MinutesSection(f"Failures and deferrals{f' of {engine}' if engine else ''}", engine, plain(peer)),
            readers_section("Who reads from it, or is read by it", readers, now),
            failed_section(found, failures, now),
            policy,
            text_section("As the engine sees it", lines, folded=True),
            table_section(
                "Pair",
                pair_rows(pairs),
                sentence="" if pairs else "no pair of engines is known",
                folded=True,
            ),
        ),
    )


def _elsewhere(readers: list[admin.PeerSummary]) -> list[str]:
    """Say whether it is this engine's trouble or everybody's."""
    if len(readers) < 2:  # noqa: PLR2004
        return []
    wrong, total = sum(map(is_wrong, readers)), len(readers)
    unknown = sum(not item.condition for item in readers)
    more = f"; of {unknown} it is not known" if unknown else ""
    many = f"All {total}" if wrong == total else f"{wrong or 'None'} of the {total}"
    return [f"{many} engines that have it are in trouble with it{more}"]
