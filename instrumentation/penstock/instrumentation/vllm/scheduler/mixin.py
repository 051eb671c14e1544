"""The scheduler: a mixin over whatever class vLLM resolves, and the hook that puts it there.

The mixin holds the policy's lock for the length of a step, decides what is done about failed loads where a policy
says so, and tells the observer what happens. Without a policy it changes nothing; every call of vLLM's own is outside the guard.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.scheduler.session import EngineSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.ec import EcLoadController
    from penstock.instrumentation.vllm.kv.failure_planner import RecoveryPlan
    from penstock.instrumentation.vllm.kv.load_controller import KvLoadController
    from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
    from penstock.instrumentation.vllm.requests import SchedulerObserver

_GUARD = guard("scheduler")

# Names of RequestStatus. Waiting for remote KV has edges of its own, see _set_kv_fetch_stage.
_REASONS = {
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": c.DEFERRAL_REASON_GRAMMAR,
    "WAITING_FOR_STREAMING_REQ": c.DEFERRAL_REASON_STREAMING_INPUT,
}


class SchedulerMixin:
    """What Penstock adds to a scheduler.

    Each method has the signature of the one it extends, in vLLM's ``Scheduler``.
    """

    _penstock: SchedulerObserver | None = None
    _penstock_loads: KvLoadController | None = None
    _penstock_ec: EcLoadController | None = None
    _penstock_media: WorkerEncoderInputs | None = None
    _penstock_source: EngineSource | None = None
    _penstock_plan: RecoveryPlan | None = None
    # The observer's and the loads' own: a step in which both are empty asks neither.
    _penstock_awaiting: Mapping[str, Any] = MappingProxyType({})
    _penstock_failing: Mapping[str, str] = MappingProxyType({})

    # Set by vLLM's Scheduler.
    requests: dict[str, Any]
    recompute_kv_load_failures: bool
    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        host: Any = super()
        host.__init__(*args, **kwargs)
        with _GUARD:
            source = self._penstock_source = EngineSource.of(self).start()
            self._penstock, self._penstock_loads = source.observer, source.loads
            self._penstock_ec = source.ec
            if source.moves:
                self._penstock_media = source.media
            self._penstock_awaiting = source.observer.awaiting_token
            self._penstock_failing = source.loads.failing

    def add_request(self, request: Any) -> None:
        """Take a request in: its ``kv_transfer_params`` are read before the connector changes them."""
        host: Any = super()
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                observer.arrived(request)
        host.add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Hold the policy for the length of the step; name the loads that are over a deadline."""
        host: Any = super()
        loads, ec = self._penstock_loads, self._penstock_ec
        with runtime.policy.step():
            if loads is not None and runtime.active:
                with _GUARD:
                    loads.check_deadlines()
            if ec is not None:
                with _GUARD:
                    ec.begin_step()
            output = host.schedule(*args, **kwargs)
            if ec is not None:
                with _GUARD:
                    ec.scheduled(output)
            self._penstock_keep_media(output)
        observer = self._penstock
        if output.scheduled_new_reqs and observer is not None and runtime.active:
            with _GUARD:
                observer.scheduled(output.scheduled_new_reqs, self.requests)
        return output

    def _penstock_keep_media(self, output: Any) -> None:
        """Have the workers know all media of whom a failed load could send back; note whose they do not."""
        media, loads, ec = self._penstock_media, self._penstock_loads, self._penstock_ec
        if media is not None and loads is not None:
            with _GUARD:
                loads.scheduled(output)
                keep = loads.needs_media or (ec is not None and ec.needs_media)
                media.scheduled(output, keep=keep)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Do what the policy says about the loads that failed in this step."""
        host: Any = super()
        loads, ec = self._penstock_loads, self._penstock_ec
        with runtime.policy.step():
            moved = model_runner_output.kv_connector_output
            plan = self._penstock_judge(moved) if moved is not None else None
            if loads is not None and self._penstock_media is not None:
                with _GUARD:
                    loads.executed(scheduler_output)
            if ec is not None:
                with _GUARD:
                    ec.executed(
                        scheduler_output.ec_connector_metadata, model_runner_output.ec_connector_output
                    )
            if plan is None:
                outputs = host.update_from_output(scheduler_output, model_runner_output)
            else:
                outputs = self._penstock_carry_out(plan, scheduler_output, model_runner_output)
            if self._penstock_failing and loads is not None and runtime.active:
                with _GUARD:
                    loads.mark(outputs)
            if ec is not None:
                with _GUARD:
                    ec.mark(outputs)
        observer = self._penstock
        if self._penstock_awaiting and observer is not None and runtime.active:
            with _GUARD:
                observer.stepped()
        return outputs

    def _penstock_judge(self, output: Any) -> RecoveryPlan | None:
        """Return what is to be done about the failed loads in *output*, or None where vLLM's own configuration decides."""
        observer, loads = self._penstock, self._penstock_loads
        if observer is None or loads is None or not runtime.active:
            return None
        if output.kv_connector_worker_meta is None and not (
            output.finished_recving or output.failed_recving or output.invalid_block_ids
        ):
            return None  # as in most steps
        with _GUARD:
            observer.reported(output.kv_connector_worker_meta)
            loads.reported(output)
        with _GUARD:
            return loads.plan(output)
        return None

    def _penstock_carry_out(self, plan: RecoveryPlan, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Let vLLM's own paths do what *plan* says.

        vLLM's switch is all or nothing: it stands on recompute for the length of the update, and those that fail take
        vLLM's other way of failing single requests (``encoder_cache_mismatch_reqs``).
        """
        host: Any = super()
        own = self.recompute_kv_load_failures
        self.recompute_kv_load_failures = True
        self._penstock_plan = plan
        try:
            if plan.anew:
                host._handle_failed_recving(set(plan.anew))
            if plan.invalid:
                host._handle_invalid_blocks(set(plan.invalid), scheduler_output.num_scheduled_tokens)
            return host.update_from_output(scheduler_output, model_runner_output)
        finally:
            self._penstock_plan = None
            self.recompute_kv_load_failures = own

    def _handle_failed_recving(self, failed_req_ids: set[str]) -> set[str]:
        host: Any = super()
        plan = self._penstock_plan
        return set(plan.failed) if plan is not None else host._handle_failed_recving(failed_req_ids)

    def _handle_invalid_blocks(
        self, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]
    ) -> set[str]:
        host: Any = super()
        plan = self._penstock_plan
        if plan is not None:
            return set(plan.failed)
        return host._handle_invalid_blocks(invalid_block_ids, num_scheduled_tokens)  # type: ignore[no-any-return]

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        host: Any = super()
        host._set_kv_fetch_stage(request, stage)
        observer, loads = self._penstock, self._penstock_loads
        if observer is None or loads is None or stage is None:
            return
        with _GUARD:
            if stage == "completed_waiting":
                loads.no_longer_parked(request.request_id)
                observer.ready(request.request_id, c.DEFERRAL_REASON_REMOTE_KV)
            elif stage == "in_progress" and runtime.active:
                loads.parked(request.request_id)
                observer.deferred(request, c.DEFERRAL_REASON_REMOTE_KV)

    def _try_schedule_encoder_inputs(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Let nobody encode what is not here: the engine would end."""
        host: Any = super()
        planned = host._try_schedule_encoder_inputs(request, *args, **kwargs)
        ec, loads = self._penstock_ec, self._penstock_loads
        if loads is not None and planned[0]:
            with _GUARD:
                to_encode, _, *rest = planned
                if (ec is not None and ec.refuses(request, to_encode)) or loads.refuses(request, to_encode):
                    # What vLLM answers where it rejects a request: no inputs and no tokens in this step.
                    return [], 0, *([] if isinstance(each, list) else each for each in rest)
        return planned

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

    def _penstock_leaving(self, request: Any) -> None:
        """Note whose blocks are about to go: a result that is awaited may show that they are tainted."""
        loads, ec = self._penstock_loads, self._penstock_ec
        if loads is not None:
            with _GUARD:
                loads.leaving(request)
        if ec is not None:
            with _GUARD:
                ec.leaving(request)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        host: Any = super()
        self._penstock_leaving(request)
        return host._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        host: Any = super()
        ec = self._penstock_ec
        self._penstock_leaving(request)
        if ec is not None:
            with _GUARD:
                ec.left(request)
        result = host._free_request(request, *args, **kwargs)
        observer, loads = self._penstock, self._penstock_loads
        if observer is not None and loads is not None:
            with _GUARD:
                loads.left(request)
                observer.closed(request)
        if self._penstock_media is not None:
            with _GUARD:
                self._penstock_media.left(request.request_id)
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
        if self._penstock_source is not None:
            with _GUARD:
                self._penstock_source.stop()
        host.shutdown()
