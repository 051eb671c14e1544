"""What an agent sees of a peer now, and peers by how bad they are. Pure.

To tell how bad a peer is takes what few of them have: durations, failures, something in flight, a quarantine, a cause that
the judge has found. All others are fine, so that the worst of many are found without a row for each.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent import limits
from penstock.agent.admin.lookups.known_peers import Condition, Present
from penstock.agent.badness import badness, list_place
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from penstock.agent.admin.lookups.known_peers import JudgedPeers, KnownPeers, PeerKey, PeerSources
    from penstock.agent.metrics import DurationWindow, DurationWindows, PeerWindows
    from penstock.agent.model import EngineKey


_NOTHING = Present()


def peer_condition(present: Present, windows: PeerWindows | None, now: int, tried: int = 0) -> Condition:
    """Return what is wrong with a peer at *now*, by its engine's clock, nanoseconds.

    A peer in quarantine is not tried: what was before tells nothing of it, but for requests that still wait.

    Args:
        tried: when the newest attempt ended, as far as the counters know; 0 for never.

    """
    hanging = _hanging(present, windows, now)
    if hanging is not None:
        return hanging
    if present.is_quarantined:
        return Condition(admin.PEER_CONDITION_QUARANTINED)
    if windows is not None:
        wrong = (
            _failing(windows, now)
            or _slow("waits", windows.waits, windows.waits)
            or _slow("transfers", windows.transfers, windows.least)
        )
        if wrong is not None:
            return wrong
    newest = () if windows is None else (windows.transfers.last_15_minutes, windows.waits.last_15_minutes)
    used = present.in_flight or present.deferred or any(each.count for each in newest)
    if used or now - tried < limits.UNTRIED_SECONDS * NANOS:
        return Condition(admin.PEER_CONDITION_OK)
    return Condition(admin.PEER_CONDITION_IDLE)


def _failing(windows: PeerWindows, now: int) -> Condition | None:
    """Return the condition if loads failed just now, or none has succeeded since the last one failed."""
    count, since = windows.failures_last_minute, windows.unanswered_since
    if count:
        reason = f"{count} failure{'' if count == 1 else 's'} in the last minute"
        return Condition(admin.PEER_CONDITION_FAILING, count, reason, since)
    if windows.unanswered:
        ago = seconds_text((now - windows.unanswered) / 1e9)
        reason = f"no transfer has succeeded since the last load failed, {ago} ago"
        return Condition(admin.PEER_CONDITION_FAILING, 0.0, reason, since)
    return None


def _hanging(present: Present, windows: PeerWindows | None, now: int) -> Condition | None:
    """Return the condition if a transfer or a request waits for longer than usual."""
    if not (present.in_flight or present.deferred):
        return None
    transfers, waits = (None, None) if windows is None else (_usual(windows.transfers), _usual(windows.waits))
    oldest = (
        ("a transfer is in flight for", present.in_flight, present.oldest_in_flight, transfers),
        ("a request waits for", present.deferred, present.oldest_deferred, waits),
    )
    worst: Condition | None = None
    for what, count, begun, usual in oldest:
        age = (now - begun) / 1e9
        least = (
            limits.HANGS_SECONDS
            if usual is None
            else max(limits.HANGS_SECONDS, limits.HANGS_TIMES * usual.p99)
        )
        if count and begun and age > least and (worst is None or age > worst.severity):
            compared = "" if usual is None else f"; usually up to {seconds_text(usual.p99)}"
            reason = f"{what} {seconds_text(age)}{compared}"
            worst = Condition(admin.PEER_CONDITION_HANGING, age, reason, begun)
    return worst


def _usual(windows: DurationWindows) -> DurationWindow | None:
    """Return the window that says what is usual; None for too few durations."""
    for window in (windows.hour_before, windows.last_15_minutes):
        if window.count >= limits.USUAL_COUNT:
            return window
    return None


def _slow(what: str, windows: DurationWindows, least: DurationWindows) -> Condition | None:
    """Return the condition if the newest durations are longer than those of the hour before, even if they are the *least* that they can be."""
    present, shortest, since = windows.last_minute, least.last_minute, "in the last minute"
    if present.count < limits.MEDIAN_COUNT:
        present, shortest, since = windows.last_15_minutes, least.last_15_minutes, "in the last 15 minutes"
    before = windows.hour_before
    if shortest.count == present.count:
        present = shortest
    if present.count < limits.MEDIAN_COUNT:
        return None
    if before.count < limits.USUAL_COUNT:
        if present.p50 < limits.SLOW_ANYWAY_SECONDS:
            return None
        reason = f"p50 of {what} {seconds_text(present.p50)} {since}, no hour before to compare with"
        return Condition(admin.PEER_CONDITION_SLOW, 1.0, reason)
    for name, after, usual, enough in (
        ("p50", present.p50, before.p50, limits.MEDIAN_COUNT),
        ("p99", present.p99, before.p99, limits.TAIL_COUNT),
    ):
        if present.count >= enough and limits.is_slower(after, usual):
            reason = (
                f"{name} of {what} {seconds_text(after)} {since}, {seconds_text(usual)} in the hour before"
            )
            return Condition(admin.PEER_CONDITION_SLOW, after / usual, reason)
    return None


def seconds_text(seconds: float) -> str:
    """Return a duration: ``12.9 s``, ``54 ms``."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


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
