"""What the judge says of peers, and peers by how bad they are now. Pure.

The judge's lasting causes about peers are conditions. To tell how bad a peer is takes what few of them have: durations,
failures, something in flight, a quarantine, a cause that the judge has found. All others are fine, so that the worst of
many are found without a row for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice, product
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.admin.lookups.peer_conditions import Condition, Present, peer_condition
from penstock.agent.badness import badness, list_place
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from penstock.agent.admin.lookups.known_peers import KnownPeers, PeerKey, PeerSources
    from penstock.agent.metrics import PeerWindows

_UNREACHABLE: Final = (
    "peer_refuses",
    "peer_resets",
    "peer_times_out",
    "peer_fails",
    "encoder_fails",
    "addresses_refuse",
)
_KINDS: Final[dict[str, admin.PeerCondition]] = {
    "weights_differ": admin.PEER_CONDITION_OTHER_WEIGHTS,
    "wrong_engine_at_address": admin.PEER_CONDITION_WRONG_ENGINE,
    "incompatible_peer": admin.PEER_CONDITION_INCOMPATIBLE,
    "incompatible_pair": admin.PEER_CONDITION_INCOMPATIBLE,
    **dict.fromkeys(_UNREACHABLE, admin.PEER_CONDITION_UNREACHABLE),
    "peer_corrupts": admin.PEER_CONDITION_FAILING,
    "peer_evicts": admin.PEER_CONDITION_FAILING,
    "peer_speaks_otherwise": admin.PEER_CONDITION_FAILING,
    "peer_slow": admin.PEER_CONDITION_SLOW,
    "encoder_slow": admin.PEER_CONDITION_SLOW,
}
_OF_PAIRS: Final = frozenset({"incompatible_pair", "incompatible_peer"})
# True while no transfer succeeds.
_WITHOUT_SUCCESS: Final = frozenset(
    {
        admin.PEER_CONDITION_UNREACHABLE,
        admin.PEER_CONDITION_LOST,
        admin.PEER_CONDITION_INCOMPATIBLE,
        admin.PEER_CONDITION_WRONG_ENGINE,
    }
)
# Causes that tell of no attempt: over for a peer from which transfers succeed.
_LOSSES: Final = frozenset({"engine_lost", "engine_away"})
_UNTRIED: Final = _LOSSES | {"incompatible_pair"}
# Of the evidence of a cause about a peer: its engine, which is known here, has gone.
_VANISHED: Final = " vanished without a goodbye"


_NOTHING = Present()


@dataclass(frozen=True, slots=True)
class Judged:
    """A lasting cause about a peer.

    Attributes:
        condition: that it stands for.
        harm: orders peers of one condition.
        reason: its sentence.
        since: by the agent's clock, nanoseconds; 0 for not known.

    """

    kind: str
    condition: admin.PeerCondition
    harm: float
    reason: str
    since: int

    def as_condition(self, windows: PeerWindows | None, ahead: int) -> Condition | None:
        """Return the condition of a peer with *windows*; None where transfers show that it is over.

        Args:
            ahead: the engine's clock minus the agent's, nanoseconds.

        """
        since = self.since + ahead if self.since else 0
        condition = self.condition
        if condition in _WITHOUT_SUCCESS and windows is not None and windows.succeeds(since):
            if self.kind in _UNTRIED:
                return None
            condition = admin.PEER_CONDITION_FAILING
        return Condition(condition, self.harm, self.reason, since)


@dataclass(frozen=True, slots=True)
class JudgedPeers:
    """The lasting causes by engine and peer.

    Attributes:
        causes: about what an engine sees of a peer.
        lost: of the engines that have gone without a goodbye, by their addresses: for all that know the peer.

    """

    causes: Mapping[PeerKey, list[Judged]] = field(default_factory=dict)
    lost: Mapping[str, Judged] = field(default_factory=dict)

    def condition(
        self, place: PeerKey, live: Condition, windows: PeerWindows | None, ahead: int
    ) -> Condition:
        """Return the worst of what the judge says and of *live*; where both say the same, the judge's words."""
        worst = live
        for each in self._of(place):
            found = each.as_condition(windows, ahead)
            if found is not None and badness(found.condition) >= badness(worst.condition):
                worst = found
        return worst

    def _of(self, place: PeerKey) -> Iterator[Judged]:
        yield from self.causes.get(place, ())
        if place[1] in self.lost:
            yield self.lost[place[1]]


def judged_peers(
    diagnosis: admin.Diagnosis | None, away: Mapping[EngineKey, str], known: Mapping[str, EngineKey]
) -> JudgedPeers:
    """Return what *diagnosis* says of peers.

    Args:
        away: the last addresses of the engines that are not connected.
        known: the engine behind each address.

    """
    causes: dict[PeerKey, list[Judged]] = {}
    lost: dict[str, Judged] = {}
    for cause in _causes(diagnosis):
        if cause.HasField("until"):
            continue
        keys = [EngineKey(key.server, key.engine) for key in cause.engines]
        if cause.kind in _LOSSES:
            gone = {key: away[key] for key in keys if known.get(away.get(key, "")) == key}
            lost.update((address, _judged(cause, admin.PEER_CONDITION_LOST)) for address in gone.values())
        condition = _condition(cause)
        if condition is not None:
            for place in product(keys, (cause.peer,) if cause.peer else cause.peers):
                causes.setdefault(place, []).append(_judged(cause, condition))
    return JudgedPeers(causes, lost)


def _causes(diagnosis: admin.Diagnosis | None) -> Iterator[admin.DiagnosedCause]:
    """Yield the causes, and the pairs of a cause that is about many; other effects say nothing of peers.

    An agent that cannot store what engines send does not know that one of them is lost.
    """
    for cause in diagnosis.causes if diagnosis is not None else ():
        yield cause
        yield from (each for each in cause.effects if each.kind in _OF_PAIRS)


def _condition(cause: admin.DiagnosedCause) -> admin.PeerCondition | None:
    condition = _KINDS.get(cause.kind)
    gone = any(_VANISHED in each.fact for each in cause.evidence)
    return admin.PEER_CONDITION_LOST if gone and cause.kind in _UNREACHABLE else condition


def _judged(cause: admin.DiagnosedCause, condition: admin.PeerCondition) -> Judged:
    return Judged(cause.kind, condition, cause.harm, cause.sentence, cause.since.ToNanoseconds())


class PeerTotals(NamedTuple):
    """How many there are: pairs of engine and address, and addresses."""

    rows: int
    addresses: int


class PeerOrder:
    """The peers of *listed*, the worst first (``list_place``); of one condition and severity by engine and address.

    Args:
        sources: durations and clocks.
        known: what is in flight, waited for or in quarantine.
        listed: the addresses of each engine.
        judged: what the judge says of peers.
        between: called after each peer that is looked at.

    Attributes:
        totals: how many there are.

    """

    def __init__(
        self,
        sources: PeerSources,
        known: KnownPeers,
        listed: Mapping[EngineKey, AbstractSet[str]],
        judged: JudgedPeers,
        *,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources, self._known, self._listed, self._judged = sources, known, listed, judged
        addresses = frozenset[str]().union(*listed.values())
        self.totals = PeerTotals(sum(map(len, listed.values())), len(addresses))
        lost = {(key, address) for key in listed for address in judged.lost}
        suspected = {*known.present, *sources.aggregator.timed_peers(), *judged.causes, *lost}
        self._suspected = sorted(place for place in suspected if place[1] in listed.get(place[0], ()))
        found: list[tuple[PeerKey, Condition]] = []
        for place in self._suspected:
            between()
            condition = self._condition(place)
            if badness(condition.condition):
                found.append((place, condition))
        found.sort(key=lambda item: (list_place(item[1].condition, item[0][1]), -item[1].severity))
        self._conditions = dict(found)
        self._ranks = {place: rank for rank, place in enumerate(self._conditions)}

    def _condition(self, place: PeerKey) -> Condition:
        key, address = place
        sources, present = self._sources, self._known.present.get(place, _NOTHING)
        now = sources.now_of(key)
        windows = sources.aggregator.peer_windows(key, address, now)
        tried = self._known.tried.get(key, {}).get(address, 0)
        live = peer_condition(present, windows, now, tried)
        # What the judge says is why it is in quarantine.
        if present.is_quarantined:
            return live
        return self._judged.condition(place, live, windows, sources.ahead.get(key, 0))

    def __iter__(self) -> Iterator[PeerKey]:
        """Yield all, the worst first."""
        yield from self._conditions
        for key in sorted(self._listed):
            for address in sorted(self._listed[key]):
                if (key, address) not in self._conditions:
                    yield key, address

    def condition(self, place: PeerKey) -> Condition:
        """Return what is wrong with a peer now."""
        return self._conditions.get(place) or self._condition(place)

    def first(self, limit: int) -> list[PeerKey]:
        """Return the first *limit* of all; 0 for all."""
        return list(islice(self, limit or None))

    def suspected(self) -> list[PeerKey]:
        """Return those that have durations, failures, something in flight, a wait or a quarantine."""
        return self._in_order(self._suspected)

    def table(self, peers: int, engines: int) -> list[PeerKey]:
        """Return the rows of a table of the worst: the first addresses by the worst engines.

        And the first row of each address and of each engine, which tell their order.
        """
        by_address = self._first_of_addresses(min(peers, self.totals.addresses))
        by_engine = self._first_of_engines(engines)
        chosen = {*by_address.values(), *by_engine.values()}
        for key in by_engine:
            chosen |= {(key, address) for address in by_address if address in self._listed[key]}
        return self._in_order(chosen)

    def _in_order(self, places: Iterable[PeerKey]) -> list[PeerKey]:
        return sorted(places, key=lambda place: (self._ranks.get(place, len(self._ranks)), place))

    def _first_of_addresses(self, number: int) -> dict[str, PeerKey]:
        found: dict[str, PeerKey] = {}
        for place in self:
            if len(found) >= number:
                break
            found.setdefault(place[1], place)
        return found

    def _first_of_engines(self, number: int) -> dict[EngineKey, PeerKey]:
        found: dict[EngineKey, PeerKey] = {}
        for place in self._conditions:
            found.setdefault(place[0], place)
        worst = sorted(
            (key for key, addresses in self._listed.items() if addresses),
            key=lambda key: (self._place(found.get(key)), key),
        )
        return {key: found.get(key) or (key, min(self._listed[key])) for key in worst[:number]}

    def _place(self, place: PeerKey | None) -> tuple[int, int]:
        return list_place(self._conditions[place].condition if place else 0, place[1] if place else "")
