"""Peers by how bad they are now, and the part of that order that a call asks for. Pure.

To tell how bad a peer is takes what few of them have: durations, failures, something in flight, a quarantine, a cause that
the judge has found. All others are fine, so that the worst of many are found without a row for each.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.admin.lookups.peer_conditions import Condition, Present, peer_condition
from penstock.agent.badness import badness, list_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from penstock.agent.admin.lookups.judged_peers import JudgedPeers
    from penstock.agent.admin.lookups.known_peers import KnownPeers, PeerKey, PeerSources
    from penstock.agent.model import EngineKey

_NOTHING = Present()


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
