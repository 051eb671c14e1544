"""What each reader says of each address, by the answers of the admin service. Pure.

The state of a peer is what ``ListPeers`` says of it. Nothing is judged here; what is not known is never ``ok``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.badness import NO_SERVERS, badness
from penstock.agent.views import text
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.views.router_feed.model import State
    from penstock.proto.v1.common_pb2 import EngineKey

_STATES: Final[dict[int, State]] = {
    admin.PEER_CONDITION_OK: "ok",
    admin.PEER_CONDITION_IDLE: "unknown",
    admin.PEER_CONDITION_QUARANTINED: "quarantined",
    admin.PEER_CONDITION_SLOW: "slow",
    admin.PEER_CONDITION_FAILING: "failing",
    admin.PEER_CONDITION_HANGING: "failing",
    admin.PEER_CONDITION_INCOMPATIBLE: "incompatible",
    admin.PEER_CONDITION_OTHER_WEIGHTS: "incompatible",
    # It is read in the place of another engine: what comes does not fit.
    admin.PEER_CONDITION_SHARED_ID: "incompatible",
    admin.PEER_CONDITION_UNREACHABLE: "unreachable",
    admin.PEER_CONDITION_LOST: "unreachable",
    # Whoever answers there is not the engine that is meant.
    admin.PEER_CONDITION_WRONG_ENGINE: "unreachable",
}
# The order of all that shows peers; what is not known is worse than what is well.
RANKS: Final[dict[State, tuple[int, bool]]] = {
    state: (min(badness(each) for each, said in _STATES.items() if said == state), state != "ok")
    for state in _STATES.values()
}
# What a relay adds to the sentence of a cause that several agents have.
_WORST: Final = " (the worst"
_UNREAD: Final = "no read from it has ended in the last 15 minutes"


class FeedAnswers(NamedTuple):
    """What the admin service has said.

    Attributes:
        diagnosis: None where there is none.
        pairs: of a relay.
        coverage: of a relay: which agents are missing; None for none.

    """

    peers: admin.ListPeersResponse
    engines: admin.ListEnginesResponse
    quarantines: admin.ListQuarantinesResponse
    diagnosis: admin.Diagnosis | None = None
    pairs: admin.ListPairsResponse | None = None
    coverage: admin.RelayCoverage | None = None


Place = tuple[str, str, str]


class Lookups(NamedTuple):
    """Answers by what is looked up in them."""

    addresses: Mapping[str, str]
    connected: frozenset[str]
    quarantines: Mapping[Place, admin.Quarantine]
    causes: Mapping[str, int]
    about: Mapping[Place, int]


class SeenPeer(NamedTuple):
    """A peer as one reader sees it; of thousands, few become rows."""

    item: admin.PeerSummary
    state: State
    why: str


def seen_of(said: FeedAnswers, known: Lookups) -> list[SeenPeer]:
    """Return the peers, the worst first: readers that have gone say nothing any more."""
    found = [
        SeenPeer(item, *_state(item, known))
        for item in said.peers.peers
        # What engines keep in memory or on a disk is nothing that a router can choose.
        if item.peer.address and item.peer.address not in NO_SERVERS
    ]
    return sorted(found, key=lambda each: RANKS[each.state], reverse=True)


def known_of(said: FeedAnswers) -> Lookups:
    """Return the answers by what is looked up in them."""
    diagnosis = said.diagnosis or admin.Diagnosis()
    lasting = [
        each for cause in diagnosis.causes for each in (cause, *cause.effects) if not each.HasField("until")
    ]
    about: dict[Place, int] = {}
    for cause in lasting:
        for key in cause.engines:
            for address in [cause.peer] if cause.peer else cause.peers:
                place = (key.server, key.engine, address)
                about[place] = max(about.get(place, 0), cause.confidence)
    return Lookups(
        addresses={
            text.engine(each.key): each.facts.side_channel or each.facts.ec_address
            for each in said.engines.engines
        },
        connected=frozenset(text.engine(each.key) for each in said.engines.engines if each.connected),
        quarantines={
            (each.key.server, each.key.engine, each.peer.address): each
            for each in said.quarantines.quarantines
        },
        causes={each.sentence.partition(_WORST)[0]: each.confidence for each in lasting},
        about=about,
    )


def _state(item: admin.PeerSummary, known: Lookups) -> tuple[State, str]:
    """Return the state of a peer, and why; for an engine that has gone, what it said last is not known to be so."""
    reader = text.engine(item.key)
    if reader not in known.connected:
        return "unknown", f"its reader {reader} is not connected"
    state = _STATES.get(item.condition, "unknown")
    if state == "ok" and not _read_lately(item):
        return "unknown", _UNREAD
    if state == "unknown":
        return state, item.condition_reason or _UNREAD
    return state, item.condition_reason


def _read_lately(item: admin.PeerSummary) -> bool:
    transfers, waits = item.transfers, item.waits
    return bool(
        transfers.last_15_minutes.count
        or waits.last_15_minutes.count
        or transfers.last_minute.count
        or waits.last_minute.count
    )


class PeerReading(NamedTuple):
    """What one reader says of an address.

    Attributes:
        why: in words.
        failures: loads of the last minute that failed.
        cause: the kind of the diagnosis' worst lasting cause about it; empty for none.

    """

    reader: EngineKey
    address: str
    state: State
    why: str
    failures: int
    cause: str


def readings(said: FeedAnswers) -> list[PeerReading]:
    """Return what each reader says of each address, the worst first: what the feed of a relay combines."""
    return [
        PeerReading(item.key, item.peer.address, state, why, item.failures_last_minute, item.cause)
        for item, state, why in seen_of(said, known_of(said))
    ]
