"""Decides about requests whose encoder outputs no peer may be asked for now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.resilience import Outcome, Trigger
from penstock.instrumentation.vllm.requests import Affected

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.ec.decider import EcFailureDecider
    from penstock.instrumentation.vllm.ec.item_peers import ItemPeers
    from penstock.instrumentation.vllm.ec.pending_items import PendingItems


class EcAdmission:
    """Stands before the connector of one scheduler; on its thread, inside a step."""

    def __init__(self, peers: ItemPeers, pending: PendingItems, decider: EcFailureDecider) -> None:
        """Keep requests from the *peers* that are cut off; the others are parts of the scheduler's ``EcLoadController``."""
        self._peers = peers
        self._pending = pending
        self._decider = decider

    def admits(self, request: Any, computed: int) -> bool:
        """Keep a request with *computed* tokens from peers that are cut off; return whether the connector may be asked about it."""
        if not self._peers.in_use:
            return True
        if request.request_id in self._decider.failing:
            return False
        refused = self._peers.keep_out(request, self._pending.loadable(request, computed))
        if not refused:
            return True
        items = tuple(refused)
        affected = Affected(
            request.request_id,
            computed,
            items=items,
            local_media=self._pending.has_media(request, computed, items),
            trigger=Trigger.QUARANTINE,
        )
        decision = self._decider.decide(request, affected, self._peers.cause(refused[items[0]]))
        self._peers.stay_local(request.request_id, items)
        return decision.outcome is Outcome.RECOMPUTED
