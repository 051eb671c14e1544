"""The scheduler: a mixin over whatever class vLLM resolves, and the hook that puts it there.

The mixin holds the policy's lock for the length of a step, decides what is done about failed KV loads where a policy
says so, and tells the observer what happens. Without a policy it changes nothing; every call of vLLM's own is outside the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation import constants as c
from penstock.instrumentation.guard import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import outcomes
from penstock.instrumentation.vllm.engine import EngineSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.outcomes import Decision
    from penstock.instrumentation.vllm.scheduler_observer import SchedulerObserver

_GUARD = guard("scheduler")
_SYNC_UNDER_ASYNC = "recomputing a synchronous load is not safe under async scheduling"

# Names of RequestStatus. Waiting for remote KV has edges of its own, see _set_kv_fetch_stage.
_REASONS = {
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": c.DEFERRAL_REASON_GRAMMAR,
    "WAITING_FOR_STREAMING_REQ": c.DEFERRAL_REASON_STREAMING_INPUT,
}
_WAITING_FOR_REMOTE = "WAITING_FOR_REMOTE_KVS"


class SchedulerMixin:
    """What Penstock adds to a scheduler.

    Each method has the signature of the one it extends, in vLLM's ``Scheduler``.
    """

    _penstock: SchedulerObserver | None = None
    _penstock_decision: Decision | None = None

    # Set by vLLM's Scheduler.
    requests: dict[str, Any]
    running: list[Any]
    kv_holding_waiting: Iterable[Any]
    recompute_kv_load_failures: bool
    kv_cache_manager: Any
    scheduler_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        host: Any = super()
        host.__init__(*args, **kwargs)
        with _GUARD:
            self._penstock = EngineSource.of(self).start()

    def add_request(self, request: Any) -> None:
        """Take a request in: its ``kv_transfer_params`` are read before the connector changes them."""
        host: Any = super()
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                observer.arrived(request)
        host.add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Hold the policy for the length of the step."""
        host: Any = super()
        with runtime.policy.step():
            output = host.schedule(*args, **kwargs)
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                if output.scheduled_new_reqs:
                    observer.scheduled(output.scheduled_new_reqs, self.requests)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Apply the policy to the loads that failed in this step, and only for its length."""
        host: Any = super()
        with runtime.policy.step():
            decision = self._penstock_decide(model_runner_output)
            if decision is None:
                outputs = host.update_from_output(scheduler_output, model_runner_output)
            else:
                own = self.recompute_kv_load_failures
                self._penstock_decision = decision
                self.recompute_kv_load_failures = decision.recompute
                try:
                    outputs = host.update_from_output(scheduler_output, model_runner_output)
                finally:
                    self._penstock_decision = None
                    self.recompute_kv_load_failures = own
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                observer.stepped()
        return outputs

    def _penstock_decide(self, model_runner_output: Any) -> Decision | None:
        """Return what is done about the failed loads of this step, or None if there are none or we are passive."""
        observer = self._penstock
        if observer is None or not runtime.active:
            return None
        with _GUARD:
            output = model_runner_output.kv_connector_output
            if output is None:
                return None
            if output.kv_connector_worker_meta is not None:
                observer.reported(output.kv_connector_worker_meta)
            if output.failed_recving or output.invalid_block_ids:
                own = self.recompute_kv_load_failures
                decision = outcomes.decide(runtime.policy.current, own_recompute=own)
                if decision.recompute and not own and self._penstock_sync_load(output.invalid_block_ids):
                    return outcomes.overrule(decision, _SYNC_UNDER_ASYNC)
                return decision
        return None

    def _penstock_sync_load(self, invalid_block_ids: set[int]) -> bool:
        """Tell whether async scheduling runs ahead with a request that holds an invalid block."""
        if not invalid_block_ids or not self.scheduler_config.async_scheduling:
            return False
        return any(
            not invalid_block_ids.isdisjoint(group)
            for request in self.running
            for group in self.kv_cache_manager.get_block_ids(request.request_id)
        )

    def _handle_failed_recving(self, failed_req_ids: set[str]) -> set[str]:
        host: Any = super()
        observer, decision = self._penstock, self._penstock_decision
        if observer is None or decision is None:
            return host._handle_failed_recving(failed_req_ids)  # type: ignore[no-any-return]
        affected: list[outcomes.Affected] = []
        kept: set[str] = set()
        with _GUARD:
            waiting = [self.requests[each] for each in failed_req_ids if each in self.requests]
            waiting = [request for request in waiting if request.status.name == _WAITING_FOR_REMOTE]
            affected = [observer.lost(request) for request in waiting]
            if not decision.recompute:
                kept = {each for each in failed_req_ids if observer.recomputing(each)}
        failed: set[str] = set()
        if kept:
            self.recompute_kv_load_failures = True
            failed |= host._handle_failed_recving(kept)
            self.recompute_kv_load_failures = decision.recompute
        failed |= host._handle_failed_recving(failed_req_ids - kept)
        with _GUARD:
            observer.settled(affected, decision)
        return failed

    def _handle_invalid_blocks(
        self, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]
    ) -> set[str]:
        host: Any = super()
        observer, decision = self._penstock, self._penstock_decision
        kept: set[int] = set()
        if observer is not None and decision is not None and not decision.recompute:
            with _GUARD:
                kept = {
                    block
                    for request in self.kv_holding_waiting
                    if request.status.name == _WAITING_FOR_REMOTE and observer.recomputing(request.request_id)
                    for group in self.kv_cache_manager.get_block_ids(request.request_id)
                    for block in group
                } & invalid_block_ids
        if not kept or decision is None:
            return host._handle_invalid_blocks(invalid_block_ids, num_scheduled_tokens)  # type: ignore[no-any-return]
        self.recompute_kv_load_failures = True
        failed: set[str] = host._handle_invalid_blocks(kept, num_scheduled_tokens)
        self.recompute_kv_load_failures = decision.recompute
        failed |= host._handle_invalid_blocks(invalid_block_ids - kept, num_scheduled_tokens)
        return failed

    def _update_requests_with_invalid_blocks(
        self,
        requests: Iterable[Any],
        invalid_block_ids: set[int],
        num_scheduled_tokens: dict[str, int],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        host: Any = super()
        observer, decision = self._penstock, self._penstock_decision
        if observer is None or decision is None:
            return host._update_requests_with_invalid_blocks(
                requests, invalid_block_ids, num_scheduled_tokens, *args, **kwargs
            )
        requests = list(requests)
        before: dict[str, int] = {}
        with _GUARD:
            before = {
                request.request_id: request.num_computed_tokens
                - num_scheduled_tokens.get(request.request_id, 0)
                for request in requests
            }
        result = host._update_requests_with_invalid_blocks(
            requests, invalid_block_ids, num_scheduled_tokens, *args, **kwargs
        )
        with _GUARD:
            observer.settled(
                [
                    outcomes.Affected(
                        each, kept := self.requests[each].num_computed_tokens, before[each] - kept
                    )
                    for each in result[0]
                ],
                decision,
            )
        return result

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        host: Any = super()
        host._set_kv_fetch_stage(request, stage)
        observer = self._penstock
        if observer is None or stage is None:
            return
        with _GUARD:
            if stage == "completed_waiting":
                observer.ready(request.request_id, c.DEFERRAL_REASON_REMOTE_KV)
            elif stage == "in_progress" and runtime.active:
                observer.deferred(request, c.DEFERRAL_REASON_REMOTE_KV)

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        host: Any = super()
        reason = _REASONS.get(request.status.name)
        ready: bool = host._handle_blocked_waiting_request(request)
        observer = self._penstock
        if observer is None:
            return ready
        if not ready:
            if reason is not None and runtime.active:
                with _GUARD:
                    observer.deferred(request, reason)
        elif observer.is_deferred(request.request_id):
            with _GUARD:
                for each in _REASONS.values():
                    observer.ready(request.request_id, each)
        return ready

    def _ec_transfer_pending(self, request: Any, num_computed_tokens: int) -> bool:
        host: Any = super()
        pending: bool = host._ec_transfer_pending(request, num_computed_tokens)
        observer = self._penstock
        if observer is None:
            return pending
        if pending and runtime.active:
            with _GUARD:
                observer.deferred(request, c.DEFERRAL_REASON_ENCODER_CACHE)
        elif not pending and observer.is_deferred(request.request_id):
            with _GUARD:
                observer.ready(request.request_id, c.DEFERRAL_REASON_ENCODER_CACHE)
        return pending

    def _connector_finished(self, request: Any) -> Any:
        host: Any = super()
        result = host._connector_finished(request)
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                if result[0]:
                    groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
                    observer.leased(request.request_id, sum(len(group) for group in groups))
        return result

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        host: Any = super()
        result = host._free_request(request, *args, **kwargs)
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                observer.closed(request)
        return result

    def _free_blocks(self, request: Any) -> None:
        host: Any = super()
        host._free_blocks(request)
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                observer.freed(request.request_id)

    def shutdown(self) -> None:
        """Stop contributing to the snapshot."""
        host: Any = super()
        runtime.snapshots.remove("scheduler")
        host.shutdown()
