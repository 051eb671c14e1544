"""Requests whose items cannot be had: what becomes of them, by policy or by the connector.

No peer may be asked for the item now (:class:`EcAdmission`); the item is bad and cannot be encoded here, and vLLM would end the
engine in the step that tries (:class:`MissingMedia`); a connector of vLLM's says that it can no longer obtain it
(:class:`UnavailableItems`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import errored_requests
from penstock.instrumentation.vllm.requests import Affected, Cause
from penstock.rules import Outcome, Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.instrumentation.vllm.ec.decider import EcFailureDecider
    from penstock.instrumentation.vllm.ec.item_peers import ItemPeers
    from penstock.instrumentation.vllm.ec.observer import EcObserver
    from penstock.instrumentation.vllm.ec.pending_items import BadItems, PendingItems
    from penstock.instrumentation.vllm.ec.request_loads import Loss, RequestLoads

_NOT_FOUND: Final = Cause(c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED)


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


class MissingMedia:
    """Fails requests of one scheduler that can neither have an item nor encode it here; on its thread."""

    def __init__(
        self, pending: PendingItems, bad: BadItems, decider: EcFailureDecider, loads: RequestLoads | None
    ) -> None:
        """Use the parts of the scheduler's ``EcLoadController``."""
        self._pending = pending
        self._bad = bad
        self._decider = decider
        self._loads = loads

    def fails(self, request: Any, computed: int) -> bool:
        """Fail a request that needs a bad item and cannot encode it here; return whether it does."""
        bad = [item for item in self._pending.missing(request, computed) if item in self._bad]
        if not bad or self._pending.has_media(request, computed, bad):
            return False
        items = self._pending.without_media(request, computed)
        affected = Affected(request.request_id, computed, items=tuple(items), local_media=False)
        self._decider.decide(request, affected, self.cause_of(items))
        return True

    def refuses(self, request: Any, indexes: Iterable[int]) -> bool:
        """Fail a request of which vLLM would encode these inputs, if one cannot be encoded here; return whether it fails."""
        items = self._pending.lacking_media(request, indexes)
        if items and request.request_id not in self._decider.failing:
            affected = Affected(
                request.request_id, request.num_computed_tokens, items=items, local_media=False
            )
            self._decider.decide(request, affected, self.cause_of(items, request.request_id))
        return bool(items)

    def cause_of(self, items: Iterable[str], request_id: str = "") -> Cause:
        """Return why the first of *items* that is bad, or that the request does without, is so; if none is, no peer has them."""
        if self._loads is not None:
            without = self._loads.without(request_id)
            cause = next((without[item] for item in items if item in without), None)
            if cause is not None:
                return cause
        return next((found for item in items if (found := self._bad.cause(item)) is not None), _NOT_FOUND)


class UnavailableItems:
    """What the connector says it cannot obtain for the requests of one scheduler; on its thread. None has computed on what it lacks."""

    def __init__(
        self,
        scheduler: Any,
        decider: EcFailureDecider,
        telemetry: EcObserver,
        pending: PendingItems,
        loads: RequestLoads | None,
        cause_of: Callable[[Iterable[str]], Cause],
    ) -> None:
        """Use the parts of the scheduler's ``EcLoadController``; without *loads* only what vLLM's interface says is known."""
        self._scheduler = scheduler
        self._decider = decider
        self._telemetry = telemetry
        self._pending = pending
        self._loads = loads
        self._cause_of = cause_of

    def settle(self, request_ids: Iterable[str], *, explain: bool) -> set[str]:
        """Report the requests that the connector gives up, or decide about them; return those that fail.

        With *explain* the client gets the reason where the connector decides.
        """
        failing = set(request_ids)
        for request_id in sorted(failing):
            request = self._scheduler.requests.get(request_id)
            known = request is not None and not request.is_finished()
            if known and request_id not in self._decider.failing and not self._fails(request, explain):
                failing.discard(request_id)
        return failing

    def decide_loss(self, request: Any, item: str, cause: Cause) -> bool | None:
        """Return whether *request* encodes *item* here (True) or fails (False); None where vLLM's own behaviour stays."""
        if not self._acts:
            return None
        affected = self._affected(request, [item])
        return self._decider.decide(request, affected, cause).outcome is Outcome.RECOMPUTED

    def on_own_fallback(self, request: Any, item: str, cause: Cause) -> None:
        """Report that the connector itself has *request* encode *item* here."""
        self._decider.recomputed_by_connector(request, self._affected(request, [item]), cause)

    @property
    def _acts(self) -> bool:
        """Whether a policy decides about failed loads now."""
        return runtime.active and self._decider.has_rule

    def _fails(self, request: Any, explain: bool) -> bool:
        items = self._pending.missing(request, request.num_computed_tokens)
        losses = self._losses(request, items)
        if self._loads is not None and not losses and self._loads.without(request.request_id):
            return False  # what the connector speaks of is encoded here
        lost = list(losses or items)
        causes = [loss.cause for loss in losses.values()]
        cause = causes[0] if causes else self._cause_of(items)
        affected = self._affected(request, lost)
        if self._loads is None or not losses or not self._acts:
            # Without a policy the answer of vLLM's own connectors stays as it is.
            self._decider.failed_by_connector(request, affected, cause, explain=explain)
            return True
        if self._decider.decide(request, affected, cause).outcome is Outcome.RECOMPUTED:
            for item, loss in losses.items():
                self._loads.do_without(request, item, loss.cause)
            return False
        # It ends with this update, not with the next one.
        errored_requests(self._scheduler).discard(request.request_id)
        return True

    def _losses(self, request: Any, items: Collection[str]) -> Mapping[str, Loss]:
        losses = {} if self._loads is None else self._loads.losses(request, items)
        for loss in losses.values():
            if loss.failure is not None:
                self._telemetry.failed(loss.failure)
        return losses

    def _affected(self, request: Any, items: Collection[str]) -> Affected:
        computed = request.num_computed_tokens
        media = self._pending.has_media(request, computed, items)
        return Affected(request.request_id, computed, items=tuple(items), local_media=media)
