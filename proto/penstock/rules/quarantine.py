"""Quarantine of peers (``peerQuarantine``): the circuit breakers of all peers, the share that may be cut off, and orders.

Times are monotonic nanoseconds, given by the caller. All changes belong to one thread, the scheduler's;
:meth:`Quarantine.listing` may be read from any.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.proto.names import NANOS
from penstock.rules.circuit_breaker import (
    Admit,
    BreakerState,
    CircuitBreaker,
    PeerFailure,
    Rules,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_IDLE_NS = 15 * 60 * NANOS
_MAX_PEERS = 1024
# Names that are not peers: unknown, or this machine's own memory and disk.
_NOT_PEERS = frozenset({"", "unknown", "host", "disk"})
_ADMITTED = Admit(remote=True)


@dataclass(frozen=True, slots=True)
class QuarantineOrder:
    """An operator's order about a peer: *quarantined* or exempt, for *ttl_ns* or until withdrawn."""

    id: str
    peer: str
    quarantined: bool
    ttl_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a peer.

    Attributes:
        peer: ``host:port``.
        engine_id: vLLM's; empty where it is unknown.
        state: of its circuit, or by order.
        reason: of the last change, a word.
        until_ns: when the next probe is admitted, a probe times out or an order ends; None if no time ends it.
        rehearsal: whether a fault drill caused it.

    """

    peer: str
    engine_id: str
    state: BreakerState
    reason: str
    until_ns: int | None
    rehearsal: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A peer's state changed from *previous* to ``status.state`` (the event ``quarantine_changed``)."""

    status: Status
    previous: BreakerState


class Quarantine:
    """The peers from which loads are admitted.

    Without rules only orders hold. A peer is known from its first request or report until it has had
    none for 15 minutes (for ``duration``, if that is longer). Of the known peers of a channel at most
    ``maxPeersPercent`` are cut off automatically, in whole peers: with 50 % one of two, and never the only one; what
    orders cut off counts, but orders are always obeyed. An incompatible peer that falls idle is no longer counted but
    remembered. A peer belongs to the channel that has asked for it first.
    """

    def __init__(
        self,
        on_change: Callable[[Change], None],
        *,
        idle_ns: int = _IDLE_NS,
        max_peers: int = _MAX_PEERS,
    ) -> None:
        """Start without rules and orders; *on_change* receives each change and must not call back."""
        self._on_change = on_change
        self._idle_ns = idle_ns
        self._max_peers = max_peers
        self._rules: Rules | None = None
        self._peers: OrderedDict[str, CircuitBreaker] = OrderedDict()  # least recently seen first
        self._dormant: OrderedDict[str, CircuitBreaker] = OrderedDict()  # incompatible and idle
        self._orders: dict[str, tuple[QuarantineOrder, int | None]] = {}  # by peer, in force
        self._order_ends: dict[str, int | None] = {}  # by id, of the last push
        self._listed: dict[str, Status] = {}  # all that are not closed
        self._probe_numbers = itertools.count(1)
        self._due: int | None = None

    def listing(self) -> list[Status]:
        """Return all peers whose circuit is not closed; safe in any thread."""
        return list(self._listed.copy().values())

    def wait_ns(self, peer: str, now: int) -> int | None:
        """Return in how many nanoseconds a load from *peer* may be admitted again; None if no time ends its quarantine."""
        status = self._listed.get(peer)
        if status is None:
            return 0
        return None if status.until_ns is None else max(status.until_ns - now, 0)

    @property
    def known_peers(self) -> int:
        """The number of peers, of all channels."""
        return len(self._peers)

    def admit(self, peer: str, engine_id: str, now: int, *, channel: int = 0) -> Admit:
        """Decide whether a request may load from *peer* (``host:port``), an engine known as *engine_id* or empty.

        *channel* (``CHANNEL_*``) is what it would load; ``maxPeersPercent`` is a share of the peers of one channel.

        Call it once per load; a load that is admitted as a probe must report its result with its number.
        """
        self.advance(now)
        if peer in _NOT_PEERS:
            return _ADMITTED
        circuit = self._touch(peer, engine_id, now, channel, asked=True)
        if peer in self._orders:
            return Admit(remote=not self._orders[peer][0].quarantined, reason="operator")
        if self._rules is None:
            return _ADMITTED
        answer = circuit.admit(self._rules, now, self._probe_numbers)
        self._publish(peer)
        return answer

    def report(
        self,
        peer: str,
        engine_id: str,
        failure: PeerFailure | None,
        now: int,
        *,
        probe: int = 0,
        channel: int = 0,
    ) -> None:
        """Apply the end of one load from *peer*: success (None) or *failure*.

        *probe* is the number that its :class:`Admit` gave. Reports about an exempt peer, and reports without rules,
        only keep the peer known.
        """
        self.advance(now)
        if peer in _NOT_PEERS:
            return
        circuit = self._touch(peer, engine_id, now, channel, asked=False)
        exempt = peer in self._orders and not self._orders[peer][0].quarantined
        if self._rules is not None and not exempt:
            if failure is None:
                circuit.succeeded(probe)
            else:
                reason = circuit.failed(failure, engine_id, probe, self._rules, now)
                if reason and self._may_cut_off(peer, self._rules):
                    circuit.open(reason, now, rehearsal=failure.rehearsal)
            self._publish(peer)

    def set_rules(self, rules: Rules | None, now: int) -> None:
        """Change the rules; None ends every automatic quarantine. New times apply to quarantines that run."""
        self.advance(now)
        self._rules = rules
        if rules is None:
            for circuit in (*self._peers.values(), *self._dormant.values()):
                circuit.close("policy")
        for peer in list(self._listed):
            self._publish(peer)
        self._release_beyond_cap()

    def set_orders(self, orders: Iterable[QuarantineOrder], now: int) -> None:
        """Replace the present orders by *orders*, the full state of the feed; the last one about a peer wins.

        An order whose id is known keeps its end: a repeated push does not prolong it. An exemption also closes the
        peer's circuit, once.

        Raises:
            ValueError: there are too many; the present ones stay.

        """
        wanted = list(orders)
        if len(wanted) > self._max_peers:
            raise ValueError(f"{len(wanted)} quarantine orders at once; use at most {self._max_peers}")
        self.advance(now)
        ends: dict[str, int | None] = {}
        in_force: dict[str, tuple[QuarantineOrder, int | None]] = {}
        for order in wanted:
            end = None if order.ttl_ns is None else now + order.ttl_ns
            ends[order.id] = end = self._order_ends.get(order.id, end)
            if end is not None and end <= now:
                continue
            in_force[order.peer] = (order, end)
            if not order.quarantined and order.id not in self._order_ends:
                self._exempt(order.peer)
        touched = {*self._orders, *in_force}
        self._orders, self._order_ends = in_force, ends
        for peer in touched:
            self._publish(peer, "operator")
        self._due = None
        self._release_beyond_cap()

    def advance(self, now: int) -> None:
        """End orders that are over and forget idle peers; costs one comparison unless something is due."""
        if self._due is not None and now < self._due:
            return
        for peer, (_, end) in list(self._orders.items()):
            if end is not None and end <= now:
                del self._orders[peer]
                self._publish(peer, "expired")
        idle_ns = max(self._idle_ns, self._rules.duration_ns if self._rules else 0)
        while self._peers and (oldest := next(iter(self._peers.values()))).seen + idle_ns <= now:
            self._forget_oldest()
        dues = [end for _, end in self._orders.values() if end is not None]
        dues.append((oldest.seen if self._peers else now) + idle_ns)
        self._due = min(dues)
        self._release_beyond_cap()

    def _touch(self, peer: str, engine_id: str, now: int, channel: int, *, asked: bool) -> CircuitBreaker:
        circuit = self._peers.get(peer)
        is_new, is_full = circuit is None, len(self._peers) >= self._max_peers
        if circuit is None:
            if is_full:
                self._forget_oldest()
            circuit = self._peers[peer] = (
                self._dormant.pop(peer) if peer in self._dormant else CircuitBreaker()
            )
        self._peers.move_to_end(peer)
        circuit.seen = max(circuit.seen, now)
        circuit.channel = circuit.channel or channel
        circuit.learn_engine_id(engine_id, asked=asked)
        self._publish(peer)
        # One is forgotten, maybe of another channel; or it is incompatible, or cut off by an order that came first.
        if is_new and (is_full or peer in self._listed):
            self._release_beyond_cap()
        return circuit

    def _forget_oldest(self) -> None:
        peer, circuit = self._peers.popitem(last=False)
        if circuit.permanent:
            self._dormant[peer] = circuit
            peer = self._dormant.popitem(last=False)[0] if len(self._dormant) > self._max_peers else peer
        self._publish(peer, "expired")

    def _exempt(self, peer: str) -> None:
        self._dormant.pop(peer, None)
        if peer in self._peers:
            self._peers[peer].close("operator")

    def _known(self, channel: int) -> int:
        return sum(circuit.channel == channel for circuit in self._peers.values())

    def _cut_off(self, channel: int) -> list[str]:
        return [peer for peer in self._listed if peer in self._peers and self._peers[peer].channel == channel]

    def _may_cut_off(self, peer: str, rules: Rules) -> bool:
        """Return whether *peer* may be, or already is, cut off: the share is never exceeded."""
        channel = self._peers[peer].channel
        share = 100 * len({peer, *self._cut_off(channel)})
        return peer in self._listed or share <= rules.max_peers_percent * self._known(channel)

    def _release_beyond_cap(self) -> None:
        """Close automatic circuits, the one that has been open longest first, until the share of each channel holds again."""
        if self._rules is None or not self._listed:
            return
        for channel in {self._peers[peer].channel for peer in self._listed if peer in self._peers}:
            self._release_of(channel, self._rules)

    def _release_of(self, channel: int, rules: Rules) -> None:
        cut_off = self._cut_off(channel)
        automatic = [
            peer
            for peer in cut_off
            if self._peers[peer].state is not BreakerState.CLOSED and peer not in self._orders
        ]
        automatic.sort(key=lambda peer: (self._peers[peer].permanent, self._peers[peer].began))
        excess = len(cut_off) - rules.max_peers_percent * self._known(channel) // 100
        for peer in automatic[: max(excess, 0)]:
            self._peers[peer].close("max_peers_percent")
            self._publish(peer)

    def _status(self, peer: str) -> Status:
        circuit = self._peers.get(peer) or self._dormant.get(peer) or CircuitBreaker()
        if peer in self._orders:
            order, end = self._orders[peer]
            state = BreakerState.OPEN if order.quarantined else BreakerState.CLOSED
            return Status(peer, circuit.engine_id, state, "operator", end, rehearsal=False)
        until = circuit.until(self._rules) if self._rules else None
        return Status(peer, circuit.engine_id, circuit.state, circuit.reason, until, circuit.rehearsal)

    def _publish(self, peer: str, closed_by: str = "") -> None:
        """Update the listing and report a change; *closed_by* is its reason where the circuit has none."""
        # Most peers are well, and this is asked at each load.
        if peer not in self._listed and peer not in self._orders:
            circuit = self._peers.get(peer) or self._dormant.get(peer)
            if circuit is None or circuit.state is BreakerState.CLOSED:
                return
        before, after = self._listed.get(peer), self._status(peer)
        if after.state is BreakerState.CLOSED:
            if before is None:
                return
            del self._listed[peer]
            after = replace(
                after, reason=closed_by or after.reason, until_ns=None, rehearsal=before.rehearsal
            )
        elif after == before:
            return
        else:
            self._listed[peer] = after
        self._on_change(Change(after, previous=before.state if before else BreakerState.CLOSED))
