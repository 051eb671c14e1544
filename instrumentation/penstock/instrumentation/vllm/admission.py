"""Quarantine in the scheduler: which peers are loaded from, by policy, by orders, and by the results of loads.

It knows peers, not requests: ``kv/request_peers.py`` and ``ec/item_peers.py`` say which loads there are.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.requests import Cause
from penstock.rules import BreakerState, PeerFailure, Quarantine, Rules

if TYPE_CHECKING:
    from penstock.instrumentation.orders import Orders
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.proto.v1.snapshot_pb2 import Snapshot
    from penstock.rules import Admit, Change, Policy

_REMEMBERED: Final = 1024

INCONCLUSIVE: Final = PeerFailure(c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER)
"""The result of a probe that ends without one: the next request probes."""


class PeerGate:
    """The peers of one scheduler. Everything but :meth:`fill` runs inside a step or under the policy's lock.

    Attributes:
        open: the peers that are cut off.
        in_use: whether a peer can be cut off, by a policy or an order.

    """

    def __init__(self) -> None:
        self._quarantine = Quarantine(self._changed)
        self._rules: Rules | None = None
        self.in_use = False
        self._standing: dict[str, tuple[BreakerState, str]] = {}
        self._causes: OrderedDict[str, Cause] = OrderedDict()
        self.open: set[str] = set()

    def on_policy_change(self, policy: Policy, orders: Orders) -> None:
        """Apply the policy and the orders that came into force."""
        now = time.monotonic_ns()
        section = policy.peer_quarantine
        rules = None if section is None else Rules.from_policy(section)
        if rules != self._rules:
            self._rules = rules
            self._quarantine.set_rules(rules, now)
        passed = now - orders.received_ns
        self.in_use = rules is not None or bool(orders.quarantines)
        self._quarantine.set_orders(
            [
                order if order.ttl_ns is None else replace(order, ttl_ns=max(order.ttl_ns - passed, 0))
                for order in orders.quarantines
            ],
            now,
        )

    def admit(self, peer: Peer, channel: int) -> Admit:
        """Decide whether a load of a ``CHANNEL_*`` may be made from *peer* now; once for each load."""
        return self._quarantine.admit(peer.address, peer.engine_id, time.monotonic_ns(), channel=channel)

    def report(
        self, address: str, engine_id: str, failure: PeerFailure | None, channel: int, probe: int = 0
    ) -> None:
        """Count the end of a load from a peer: success (None) or *failure*; *probe* is the number that its ``Admit`` gave."""
        self._quarantine.report(
            address, engine_id, failure, time.monotonic_ns(), probe=probe, channel=channel
        )

    def wait_ns(self, address: str) -> int | None:
        """Return in how many nanoseconds a load from a peer may be admitted again; None if no time ends its quarantine."""
        return self._quarantine.wait_ns(address, time.monotonic_ns())

    def cause(self, address: str) -> Cause:
        """Return the last failure of a peer; one without a mode where none is known, as after an order."""
        return self._causes.get(address, Cause(0, 0))

    def remember(self, address: str, cause: Cause) -> None:
        """Record the last failure of a peer."""
        self._causes[address] = cause
        self._causes.move_to_end(address)
        if len(self._causes) > _REMEMBERED:
            self._causes.popitem(last=False)

    def fill(self, snapshot: Snapshot) -> None:
        """Add the peers that are not closed; on the exporter's thread, reads only."""
        now, wall = time.monotonic_ns(), time.time_ns()
        for status in self._quarantine.listing():
            if status.reason == "operator" and status.until_ns is not None and status.until_ns <= now:
                continue  # over, which an idle scheduler has had no step to notice
            until = 0 if status.until_ns is None else wall + status.until_ns - now
            snapshot.peers.add(
                peer={"address": status.peer, "engine_id": status.engine_id},
                quarantine=int(status.state),
                quarantine_until_unix_nano=until,
            )

    def _changed(self, change: Change) -> None:
        status = change.status
        standing = (status.state, status.reason)
        # An engine id that becomes known, or a time that moves, is no event.
        known = self._standing.pop(status.peer, None) == standing
        if status.state is not BreakerState.CLOSED:
            self._standing[status.peer] = standing
        if status.state is BreakerState.OPEN:
            self.open.add(status.peer)
        else:
            self.open.discard(status.peer)
        if known or not runtime.active:
            return
        until = 0 if status.until_ns is None else time.time_ns() + status.until_ns - time.monotonic_ns()
        runtime.emit_event(
            "quarantine_changed",
            {
                "peer": {"address": status.peer, "engine_id": status.engine_id},
                "state": int(status.state),
                "previous": int(change.previous),
                "reason": status.reason,
                "until_time_unix_nano": until,
            },
            component=c.COMPONENT_SCHEDULER,
            rehearsal=status.rehearsal,
        )
