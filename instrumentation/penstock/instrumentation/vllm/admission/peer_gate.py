"""Quarantine in the scheduler: which peers are loaded from, by policy, by orders, and by the results of loads."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import BreakerState, PeerFailure, Quarantine, Rules
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.naming import peers
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Admit, Change, Orders, Policy
    from penstock.instrumentation.vllm.messages import Culprit
    from penstock.instrumentation.vllm.requests import RequestRecord
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_REMEMBERED: Final = 1024

# The result of a probe that ends without one: the next request probes.
_INCONCLUSIVE: Final = PeerFailure(c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER)


class PeerGate:
    """The peers of one scheduler. Everything but :meth:`fill` runs inside a step or under the policy's lock."""

    def __init__(self) -> None:
        self._quarantine = Quarantine(self._changed)
        self._rules: Rules | None = None
        self._standing: dict[str, tuple[BreakerState, str]] = {}
        self._open: frozenset[str] = frozenset()
        self._loading: dict[str, str] = {}
        self._causes: OrderedDict[str, Cause] = OrderedDict()

    def on_policy_change(self, policy: Policy, orders: Orders) -> None:
        """Apply the policy and the orders that came into force."""
        now = time.monotonic_ns()
        section = policy.peer_quarantine
        rules = None if section is None else Rules.from_policy(section)
        if rules != self._rules:
            self._rules = rules
            self._quarantine.set_rules(rules, now)
        passed = now - orders.received_ns
        self._quarantine.set_orders(
            [
                order if order.ttl_ns is None else replace(order, ttl_ns=max(order.ttl_ns - passed, 0))
                for order in orders.quarantines
            ],
            now,
        )

    def admit(self, record: RequestRecord) -> Admit:
        """Decide whether a request may load from its peer now; asked again while it cannot be scheduled, a probe stays one."""
        peer = record.peer or peers.Peer()
        admitted = self._quarantine.admit(peer.address, peer.engine_id, time.monotonic_ns())
        record.probe = admitted.probe or record.probe
        return replace(admitted, remote=True) if record.probe else admitted

    @property
    def has_open(self) -> bool:
        """Whether a peer is cut off."""
        return bool(self._open)

    def is_open(self, address: str) -> bool:
        """Return whether a peer is cut off."""
        return address in self._open

    def cause(self, address: str) -> Cause:
        """Return the last failure of a peer; one without a mode where none is known, as after an order."""
        return self._causes.get(address, Cause(0, 0))

    def on_load_begun(self, record: RequestRecord) -> None:
        """Record that a request loads from its peer."""
        if record.peer is not None:
            self._loading[record.request_id] = record.peer.address

    def on_load_failed(self, record: RequestRecord) -> None:
        """Count the first failure of a load."""
        failure = record.failure
        address = self._loading.pop(record.request_id, "")
        if failure is None:
            return
        if failure.peer.address != peers.UNKNOWN:
            address = failure.peer.address
        if failure.mode != c.FAILURE_MODE_COLLATERAL:
            self._remember(address, Cause(failure.mode, failure.error_type, failure.rehearsal))
        self._report(
            record,
            address,
            failure.peer.engine_id,
            PeerFailure(failure.mode, failure.error_type, failure.rehearsal),
        )
        culprit = failure.culprit
        if culprit is not None and culprit.mode:
            self._blame(culprit, rehearsal=failure.rehearsal)

    def _blame(self, culprit: Culprit, *, rehearsal: bool) -> None:
        """Count against a peer what it did to a load from another one."""
        peer, failure = culprit.peer, PeerFailure(culprit.mode, culprit.error_type, rehearsal)
        if peer.address not in self._causes:
            self._remember(peer.address, Cause(culprit.mode, culprit.error_type, rehearsal))
        self._quarantine.report(peer.address, peer.engine_id, failure, time.monotonic_ns())

    def _remember(self, address: str, cause: Cause) -> None:
        self._causes[address] = cause
        self._causes.move_to_end(address)
        if len(self._causes) > _REMEMBERED:
            self._causes.popitem(last=False)

    def on_load_ended(self, record: RequestRecord) -> None:
        """Count a load that succeeded."""
        address = self._loading.pop(record.request_id, "")
        if address and record.peer is not None:
            self._report(record, address, record.peer.engine_id, None)

    def on_finished(self, record: RequestRecord) -> None:
        """Forget a request; a probe that ended without a result makes room for the next."""
        address = self._loading.pop(record.request_id, "") or (record.peer or peers.Peer()).address
        if record.probe:
            with runtime.policy.step():
                self._report(record, address, "", _INCONCLUSIVE)

    def drop_heartbeats(self, metadata: Any) -> None:
        """Remove the heartbeats to peers that are cut off from a step's *metadata*: each would start a handshake, on the only thread for it.

        A peer that a load still reads from keeps them, because its lease must not run out under the read.
        """
        beats = getattr(metadata, "heartbeat_by_engine", None)
        if not beats or not self._open:
            return
        silent = self._open.difference(self._loading.values())
        metadata.heartbeat_by_engine = {
            engine_id: beat
            for engine_id, beat in beats.items()
            if peers.address(beat.host, beat.port) not in silent
        }

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

    def _report(
        self, record: RequestRecord, address: str, engine_id: str, failure: PeerFailure | None
    ) -> None:
        probe, record.probe = record.probe, 0
        self._quarantine.report(address, engine_id, failure, time.monotonic_ns(), probe=probe)

    def _changed(self, change: Change) -> None:
        status = change.status
        standing = (status.state, status.reason)
        # An engine id that becomes known, or a time that moves, is no event.
        known = self._standing.pop(status.peer, None) == standing
        if status.state is not BreakerState.CLOSED:
            self._standing[status.peer] = standing
        self._open = frozenset(
            peer for peer, (state, _) in self._standing.items() if state is BreakerState.OPEN
        )
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
