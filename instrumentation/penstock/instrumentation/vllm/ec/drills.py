"""Fault drills of encoder outputs in the scheduler; those of mode ``load`` are the workers' (``ec/worker.py``)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW, Drills
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcLoader, EcPeerSource, EcRehearsal
from penstock.instrumentation.vllm.naming import UNKNOWN
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from penstock.instrumentation.orders import Drill, Orders
    from penstock.instrumentation.vllm.ec.observer import EcObserver
    from penstock.instrumentation.vllm.ec.pending_items import BadItems

_OF_TRANSFERS: Final = frozenset({c.FAILURE_MODE_TRANSFER, SLOW})


class EcDrills:
    """The drills of one scheduler.

    A connector that moves items ahead of scheduling carries them out itself if it can (:class:`EcRehearsal`); for one that only looks
    whether it has an item, a probe that fails is rehearsed at its answer. Only :meth:`hit` is called from other threads.
    """

    def __init__(self, connector: Any, telemetry: EcObserver, bad: BadItems) -> None:
        """Rehearse what *connector*, or what is beside it, does; report to *telemetry*, and remember in *bad* what is to be encoded here."""
        settings = runtime.settings
        self._name = telemetry.connector
        self._telemetry = telemetry
        self._bad = bad
        self._allowed = settings is not None and settings.allow_faults
        self._drills = Drills(allowed=self._allowed)
        self._moves_ahead = isinstance(connector, EcLoader)
        self._names_peers = isinstance(connector, EcPeerSource) or self._moves_ahead
        self._rehearsal: EcRehearsal | None = connector if isinstance(connector, EcRehearsal) else None
        self._drawn: dict[str, Drill | None] = {}
        if self._rehearsal is not None and self._allowed:
            self._rehearsal.rehearse(self.hit)

    def on_policy_change(self, orders: Orders) -> None:
        """Replace the drills by those in force."""
        if self._allowed:
            drills = orders.drills_at(time.monotonic_ns())
            self._drills.replace(each for each in drills if each.channel == c.CHANNEL_EC)

    def unfit(self, drill: Drill) -> str:
        """Return why this engine cannot rehearse *drill*; empty if it can. From any thread."""
        if drill.channel != c.CHANNEL_EC:
            return ""
        if self._moves_ahead and self._rehearsal is None and drill.mode != c.FAILURE_MODE_LOAD:
            return (
                f"drill {drill.id}: {self._name} moves its items by itself, and nothing can be made to fail there but an item that "
                "has come; use mode load"
            )
        if drill.mode in _OF_TRANSFERS and self._rehearsal is None:
            return (
                f"drill {drill.id}: {self._name} has no transfer that could fail or be slow: it loads its items inside a step, "
                "where a delay would hold up every request; use mode load or probe"
            )
        if drill.peer and not self._names_peers:
            return f"drill {drill.id}: {self._name} names no peers, so none has the address {drill.peer}; leave the peer out"
        return ""

    def hit(self, mode: int, peer: str) -> Drill | None:
        """Return the drill that hits this attempt at *mode* with *peer*; None if none does."""
        return self._drills.hit(c.CHANNEL_EC, mode, peer) if runtime.active else None

    def fails_answer(self, item: str) -> bool:
        """Let a drill turn the connector's answer that it has *item* into a failed probe; tell whether one does.

        It is drawn once for each item of a step: the connector asks itself again for what has been given its room.
        """
        if self._moves_ahead or self._rehearsal is not None:
            return False
        if item not in self._drawn:
            self._drawn[item] = drill = self.hit(c.FAILURE_MODE_PROBE, UNKNOWN)
            if drill is not None:
                self._fail_answer(item, drill)
        return self._drawn[item] is not None

    def end_step(self) -> None:
        """Draw anew from now on."""
        self._drawn.clear()

    def _fail_answer(self, item: str, drill: Drill) -> None:
        cause = Cause(c.FAILURE_MODE_PROBE, c.ERROR_TYPE_OTHER, rehearsal=True)
        self._bad.remember(item, cause)
        self._telemetry.failed(
            EcFailure(item, cause.mode, cause.error_type, f"drill {drill.id}", rehearsal=True)
        )

    def rehearsed(self, item: str) -> bool:
        """Return whether a drill makes *item* late."""
        return self._rehearsal is not None and self._rehearsal.rehearsed(item)
