"""Peers that are cut off although nothing of them fails now: by a quarantine that stayed, or by vLLM's own list."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, words
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

_SECONDS = 5.0


def cut_off_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield cut-off peers without a failure in the window."""
    failing = {peer for _, peer in shares.peers}
    ordered = {(words.key_of(each.key), each.peer.address) for each in facts.quarantines if each.author}
    invalid = _by_peer(facts, failing, lambda each: each.status.upstream_invalid)
    for peer, keys in sorted(invalid.items()):
        yield FoundCause(
            "upstream_invalid_peer",
            f"vLLM itself no longer reads from peer {peer} on {words.engines(keys)}, until that peer starts anew",
            words.keys_of(keys),
            (Evidence("it is in vLLM's list of invalid remote engines"),),
            peer=peer,
            other_harm=_SECONDS * len(keys),
            confidence=Confidence.CERTAIN,
            alternatives=("the peer has restarted, and its new engine id is not known here yet",),
            commands=(f"agentctl describe peer {peer}",),
        )
    quarantined = _by_peer(
        facts,
        failing | set(invalid),
        lambda each: (
            each.status.quarantine == QUARANTINE_STATE_OPEN
            and (words.key_of(each.key), each.peer.address) not in ordered
        ),
    )
    for peer, keys in sorted(quarantined.items()):
        yield FoundCause(
            "peer_stays_quarantined",
            f"peer {peer} is still in quarantine on {words.engines(keys)}, and did not fail in the last "
            f"{words.span(facts.present.seconds)}",
            words.keys_of(keys),
            (Evidence("the engine put it there; a probe is sent when the quarantine ends"),),
            peer=peer,
            other_harm=_SECONDS * len(keys),
            alternatives=("an incompatible peer: that quarantine lasts until the peer starts anew",),
            commands=(f"agentctl describe peer {peer}", f"agentctl quarantine lift {peer}"),
        )


def _by_peer(
    facts: Facts, left_out: set[str], fits: Callable[[admin.PeerSummary], bool]
) -> dict[str, list[EngineKey]]:
    found: dict[str, list[EngineKey]] = defaultdict(list)
    for each in facts.peers:
        if each.peer.address not in left_out and not each.retired and fits(each):
            found[each.peer.address].append(words.key_of(each.key))
    return found
