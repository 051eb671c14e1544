"""Items that a connector of vLLM's says it can no longer obtain: what becomes of their requests, by policy or by the connector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.resilience import Outcome
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import errored_requests
from penstock.instrumentation.vllm.requests import Affected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.instrumentation.vllm.ec.decider import EcFailureDecider
    from penstock.instrumentation.vllm.ec.observer import EcObserver
    from penstock.instrumentation.vllm.ec.pending_items import PendingItems
    from penstock.instrumentation.vllm.ec.request_loads import Loss, RequestLoads
    from penstock.instrumentation.vllm.requests import Cause


class UnavailableItems:
    """The connector's word about the requests of one scheduler; on its thread. None has computed on what it lacks."""

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
