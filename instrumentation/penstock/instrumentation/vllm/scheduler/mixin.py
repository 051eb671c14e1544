"""The mixin over the scheduler class that vLLM resolves: it calls the session at each hook point.

The mixin holds the policy's lock for the length of a step. Without a policy it changes nothing; every call of vLLM's own is
outside the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.scheduler.session import SchedulerSession

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.kv.failure_planner import RecoveryPlan

_GUARD = guard("scheduler")

# Names of RequestStatus. Waiting for remote KV has edges of its own, see _set_kv_fetch_stage.
_REASONS = {
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": c.DEFERRAL_REASON_GRAMMAR,
    "WAITING_FOR_STREAMING_REQ": c.DEFERRAL_REASON_STREAMING_INPUT,
}
_INPUTS = tuple(_REASONS.values())


class SchedulerMixin:
    """What Penstock adds to a scheduler.

    Each method has the signature of the one it extends, in vLLM's ``Scheduler``.
    """

    _penstock: SchedulerSession | None = None
    # In force for the length of one update.
    _penstock_plan: RecoveryPlan | None = None

    # Set by vLLM's Scheduler.
    recompute_kv_load_failures: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        upstream: Any = super()
        upstream.__init__(*args, **kwargs)
        with _GUARD:
            self._penstock = SchedulerSession(self).start()

    def add_request(self, request: Any) -> None:
        """Record the request first: the connector changes its ``kv_transfer_params``."""
        upstream: Any = super()
        session = self._penstock
        if session is not None and runtime.active:
            session.on_request_added(request)
        upstream.add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Hold the policy's lock for the length of the step."""
        upstream: Any = super()
        session = self._penstock
        with runtime.policy.step():
            if session is not None:
                session.before_schedule()
            output = upstream.schedule(*args, **kwargs)
            if session is not None:
                session.after_schedule(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Carry out what the policy says about the loads that failed in this step."""
        upstream: Any = super()
        session = self._penstock
        with runtime.policy.step():
            plan = None
            if session is not None:
                plan = session.before_update(scheduler_output, model_runner_output)
            if plan is None:
                outputs = upstream.update_from_output(scheduler_output, model_runner_output)
            else:
                outputs = self._penstock_carry_out(plan, scheduler_output, model_runner_output)
            if session is not None:
                session.after_update(scheduler_output, outputs)
        return outputs

    def _penstock_carry_out(self, plan: RecoveryPlan, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Let vLLM's own paths do what *plan* says.

        vLLM's switch is all or nothing: it stands on recompute for the length of the update, and those that fail take
        vLLM's other way of failing single requests (``FailingRequests``).
        """
        upstream: Any = super()
        own = self.recompute_kv_load_failures
        self.recompute_kv_load_failures = True
        self._penstock_plan = plan
        try:
            if plan.reload:
                upstream._handle_failed_recving(set(plan.reload))
            if plan.invalid:
                upstream._handle_invalid_blocks(set(plan.invalid), scheduler_output.num_scheduled_tokens)
            return upstream.update_from_output(scheduler_output, model_runner_output)
        finally:
            self._penstock_plan = None
            self.recompute_kv_load_failures = own

    def _handle_failed_recving(self, failed_req_ids: set[str]) -> set[str]:
        upstream: Any = super()
        plan = self._penstock_plan
        return set(plan.failed) if plan is not None else upstream._handle_failed_recving(failed_req_ids)

    def _handle_invalid_blocks(
        self, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]
    ) -> set[str]:
        upstream: Any = super()
        plan = self._penstock_plan
        if plan is not None:
            return set(plan.failed)
        return upstream._handle_invalid_blocks(invalid_block_ids, num_scheduled_tokens)  # type: ignore[no-any-return]

    def _penstock_allocated(self) -> Iterable[str]:
        session = self._penstock
        return tuple(session.loads.unconfirmed.allocated) if session is not None else ()

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        upstream: Any = super()
        upstream._set_kv_fetch_stage(request, stage)
        session = self._penstock
        if session is not None and stage is not None:
            session.on_kv_fetch_stage(request, stage)

    def _try_schedule_encoder_inputs(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Schedule no input that cannot be encoded here: the engine would end."""
        upstream: Any = super()
        planned = upstream._try_schedule_encoder_inputs(request, *args, **kwargs)
        session = self._penstock
        if session is not None and planned[0] and session.refuses(request, planned[0]):
            # What vLLM answers where it rejects a request: no inputs and no tokens in this step.
            return [], 0, *([] if isinstance(each, list) else each for each in planned[2:])
        return planned

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        upstream: Any = super()
        ready: bool = upstream._handle_blocked_waiting_request(request)
        session = self._penstock
        if session is None:
            return ready
        if not ready:
            # Its status is still the one that blocks it.
            reason = _REASONS.get(request.status.name)
            if reason is not None and runtime.active:
                session.on_deferred(request, reason)
            return ready
        if session.observer.waits_for(request.request_id, _INPUTS):
            session.on_ready(request, _INPUTS)
        scan = session.scan
        scan.looked = request
        if scan.asked:
            scan.watch()
        return ready

    def _penstock_on_looked(self, request: Any) -> None:
        session = self._penstock
        if session is not None:
            session.scan.looked = request
            if session.scan.asked:
                session.scan.watch()

    def set_pause_state(self, pause_state: Any) -> None:
        """Record since when the scheduler is paused."""
        upstream: Any = super()
        upstream.set_pause_state(pause_state)
        if self._penstock is not None:
            self._penstock.on_pause(pause_state)

    def _connector_finished(self, request: Any) -> Any:
        upstream: Any = super()
        result = upstream._connector_finished(request)
        session = self._penstock
        # Without a connector there is neither; the digest of a request that keeps nothing goes with its record.
        if session is not None and runtime.active and (result[0] or result[1]):
            session.on_connector_finished(request, result)
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        session = self._penstock
        if session is not None:
            session.before_preempt(request)
        return upstream._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        session = self._penstock
        if session is None:
            return upstream._free_request(request, *args, **kwargs)
        session.before_free(request)
        result = upstream._free_request(request, *args, **kwargs)
        session.on_finished(request)
        return result

    def _free_blocks(self, request: Any) -> None:
        upstream: Any = super()
        upstream._free_blocks(request)
        session = self._penstock
        if session is not None:
            session.on_blocks_freed(request)

    def shutdown(self) -> None:
        """Stop contributing to the snapshot."""
        upstream: Any = super()
        if self._penstock is not None:
            self._penstock.stop()
        upstream.shutdown()
