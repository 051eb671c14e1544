"""What Penstock keeps of one scheduler: the parts behind the mixins, one method for each hook point, and the engine's facts.

Hook points run on the scheduler's thread and never raise. Where several parts act at one hook point, an error in one does not keep
the others from acting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import ROLES, guard, guarded
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.policy import fits_always
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.admission import PeerGate
from penstock.instrumentation.vllm.compat import can_fail_loads, failed_receives, hears_all_ranks
from penstock.instrumentation.vllm.ec import EcLoadController, EcSchedulerSideMixin
from penstock.instrumentation.vllm.kv.load_controller import KvLoadController
from penstock.instrumentation.vllm.naming import engine_identity
from penstock.instrumentation.vllm.progress import SchedulerSteps, connector_threads
from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
from penstock.instrumentation.vllm.requests import SchedulerObserver
from penstock.instrumentation.vllm.scheduler.engine_facts import engine_facts
from penstock.instrumentation.vllm.scheduler.request_queue import QueueScan, RequestQueue, queue_part
from penstock.instrumentation.vllm.scheduler.weights import WeightsFacts
from penstock.proto.names import ENGINE_CORE
from penstock.rules import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import ParamSpec

    from penstock.instrumentation.vllm.kv.failure_planner import RecoveryPlan
    from penstock.proto.v1.snapshot_pb2 import Snapshot

    _P = ParamSpec("_P")

POLICY_FIELDS = (
    "kv_load_failure",
    "ec_load_failure",
    "deferral",
    "peer_quarantine",
    "telemetry",
    "integrity",
    "reflexes",
)
"""What this engine, or the agent for it (the traces' sample ratio), acts upon; a policy with anything else is refused."""

_HOOK: Final = "scheduler"


class SchedulerSession:
    """One scheduler and what is true of it while it runs.

    Attributes:
        observer: its requests, deferrals, leases and held blocks.
        gate: the peers that it may load from.
        loads: its remote KV loads.
        ec: its encoder outputs; None without an EC connector that has Penstock's mixin.
        media: what its workers know of the requests' inputs.
        scan: why its looks at the queue end.
        has_tiers: whether its KV may come through a P2P tier.
        abandoned: loads that go on although a deadline has given them up.

    """

    def __init__(self, scheduler: Any) -> None:
        """Build the parts for *scheduler*, which is built but has not run."""
        self._scheduler = scheduler
        self._config = scheduler.vllm_config
        self._own_action = Action.RECOMPUTE if scheduler.recompute_kv_load_failures else Action.FAIL
        self._connector = scheduler.connector
        self._ec_connector = scheduler.ec_connector
        self._facts = engine_facts(scheduler)
        self._weights = WeightsFacts(self._config)
        self.observer = SchedulerObserver(self._facts["kv_connector"], self._facts["block_size"])
        self.scan = QueueScan(scheduler, self.observer.deferred)
        self._queue: RequestQueue | None = None
        if queue_part(type(scheduler)).missing():
            self._steps = SchedulerSteps(outlives_failures=outlives_failures(self._config))
        else:
            self._steps = SchedulerSteps(
                scheduler.get_request_counts, outlives_failures=outlives_failures(self._config)
            )
            with guard("queue"):
                self._queue = RequestQueue(scheduler, self.observer, self.scan, self._steps)
        self.media = WorkerEncoderInputs(scheduler)
        self.gate = PeerGate()
        self.loads = KvLoadController(scheduler, self.observer, self.media, self.gate)
        # The connector's mixin reads them outside the guard.
        self.has_tiers, self.abandoned = bool(self.loads.sources.tiers), self.loads.abandoned
        self.ec: EcLoadController | None = None
        # Without the connector's mixin no call would reach it.
        if isinstance(self._ec_connector, EcSchedulerSideMixin):
            with guard("ec_connector"):
                self.ec = EcLoadController(scheduler, self.observer, self.media, self.gate)
        # Only with a connector can something fail to load.
        self._has_connector = self._connector is not None or self._ec_connector is not None
        # The parts' own tables: a step in which they are empty calls none of them.
        self._awaiting_token: Mapping[str, Any] = self.observer.awaiting_token
        self._failing = self.loads.failing
        self._waiting = self.loads.deadlines
        self._for_start, self._for_transfer = self._waiting.waiting
        self._left = self.loads.deadlines.left
        self._allocated = self.loads.unconfirmed.allocated
        self._unconfirmed = self.loads.unconfirmed.steps

    def start(self) -> SchedulerSession:
        """Identify the process, subscribe to the policy, contribute to the snapshot; returns itself."""
        engine_identity.excuse_hooks(self._config)
        runtime.identify(
            process=ENGINE_CORE,
            key=engine_identity.engine_index(self._config),
            role=engine_identity.guess_role(self._config),
            model=self._facts["model"],
            vllm_version=self._facts["vllm_version"],
        )
        # Read by the connectors' own mixins, where those are installed.
        if self._connector is not None:
            self._connector._penstock = self
        runtime.policy.subscribe(self.gate.on_policy_change)
        if self.ec is not None:
            self._ec_connector._penstock = self
            runtime.policy.subscribe(self.ec.on_policy_change)
            runtime.policy.unfit_drill = self.ec.unfit_drill
        runtime.snapshots.add("scheduler", self.fill)
        if self._queue is not None:
            runtime.snapshots.add("queue", self._queue.fill)
        if self._has_connector:
            connector_threads.report()
        runtime.policy.subscribe(self.loads.on_policy_change)
        runtime.start_policy(self.policy_fields())
        return self

    def policy_fields(self) -> Sequence[str]:
        """Return what this engine acts upon; a policy is refused rather than accepted and not carried out."""
        unable = set()
        if not can_fail_loads(self._scheduler):
            unable |= {"kv_load_failure", "reflexes"}
        if self._connector is not None and not self.loads.reflexes.able:
            unable.add("reflexes")
        if self._ec_connector is not None and (self.ec is None or not hears_all_ranks(self._scheduler)):
            unable.add("ec_load_failure")
        return [name for name in POLICY_FIELDS if name not in unable]

    @guarded(_HOOK, default=None)
    def stop(self) -> None:
        """Unsubscribe from the policy and the snapshot."""
        runtime.snapshots.remove("scheduler")
        runtime.snapshots.remove("queue")
        runtime.policy.unsubscribe(self.gate.on_policy_change)
        runtime.policy.unsubscribe(self.loads.on_policy_change)
        if self.ec is not None:
            runtime.policy.unsubscribe(self.ec.on_policy_change)
            # Another scheduler of this process may have set its own.
            if runtime.policy.unfit_drill is self.ec.unfit_drill:
                runtime.policy.unfit_drill = fits_always

    # Requests

    @guarded(_HOOK, default=None)
    def on_request_added(self, request: Any) -> None:
        """Record a request before the connector changes its ``kv_transfer_params``."""
        self.observer.on_request_added(request)
        if self._connector is not None:
            self.loads.verifier.on_request_added(request)

    @guarded(_HOOK, default=None)
    def on_kv_fetch_stage(self, request: Any, stage: str) -> None:
        """Record that a remote load makes a request wait (``in_progress``), or no longer does (``completed_waiting``)."""
        if stage == "completed_waiting":
            self.loads.on_ready(request.request_id)
            self.observer.on_ready(request.request_id, c.DEFERRAL_REASON_REMOTE_KV)
            self.observer.on_load_ended(request.request_id)
        elif stage == "in_progress" and runtime.active:
            self.loads.on_waiting(request)
            self.observer.on_deferred(request, c.DEFERRAL_REASON_REMOTE_KV)
            # Blocks of the local prefix are hashed; what is loaded is not, until it has come.
            blocks = sum(each.block_hash is None for each in self._blocks_of(request))
            self.observer.on_load_waiting(request.request_id, blocks, self.loads.origin(request))

    @guarded(_HOOK, default=None)
    def on_deferred(self, request: Any, reason: int) -> None:
        """Record that the scheduler passes a request over; *reason* is a ``DEFERRAL_REASON_*``."""
        self.observer.on_deferred(request, reason)

    @guarded(_HOOK, default=None)
    def on_ready(self, request: Any, reasons: Iterable[int]) -> None:
        """Record that a request no longer waits for any of *reasons*."""
        for reason in reasons:
            self.observer.on_ready(request.request_id, reason)

    @guarded(_HOOK, default=None)
    def on_connector_finished(self, request: Any, result: Any) -> None:
        """Record that the connector keeps the blocks of a finished request, by its *result*; add its digest to that."""
        self.loads.verifier.add_digest(request.request_id, result[1])
        if result[0]:
            self.loads.abandoned.on_connector_finished(request.request_id)
            self.observer.on_kept(request, sum(1 for _ in self._blocks_of(request)))

    def _blocks_of(self, request: Any) -> Iterator[Any]:
        """Return the blocks that a request has; those that a sliding window has left behind are vLLM's null block, and not held."""
        groups = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        return (each for group in groups for each in group if not each.is_null)

    def before_preempt(self, request: Any) -> None:
        """Record that a request is about to lose what is computed for it."""
        self.before_free(request)
        self.scan.on_preempted()
        _contained(self.observer.on_preempted, request.request_id)
        _contained(self.loads.verifier.on_lost, request.request_id)
        if runtime.active:
            _contained(self.observer.on_lost, request.request_id, request.num_computed_tokens)

    @guarded(_HOOK, default=None)
    def before_free(self, request: Any) -> None:
        """Record the blocks of a request that is about to lose them: a result that is awaited may show that they are tainted."""
        if self._unconfirmed:
            _contained(self.loads.before_free, request)
        if self.ec is not None:
            _contained(self.ec.before_free, request)

    @guarded(_HOOK, default=None)
    def on_finished(self, request: Any) -> None:
        """Forget a request that has finished, and emit what its span needs."""
        if self.ec is not None:
            _contained(self.ec.on_finished, request)
        self._on_finished(request)
        if self._has_connector:
            _contained(self.media.on_finished, request.request_id)

    @guarded(_HOOK, default=None)
    def _on_finished(self, request: Any) -> None:
        if self._connector is not None:
            self.loads.on_finished(request)
        self.observer.on_finished(request)

    @guarded(_HOOK, default=None)
    def on_blocks_freed(self, request: Any) -> None:
        """Record that a request's blocks are free, and emit the end of its lease if it had one."""
        if self.abandoned.any:
            self.loads.on_blocks_freed(request.request_id)
        self.observer.on_blocks_freed(request.request_id)

    @guarded(_HOOK, default=None)
    def on_pause(self, state: Any) -> None:
        """Record that vLLM's scheduler is paused, or goes on."""
        if self._queue is not None:
            self._queue.on_pause(state)

    # Steps

    @guarded(_HOOK, default=None)
    def before_schedule(self) -> None:
        """Name the loads that are over a deadline to the workers; decide about encoder outputs that failed."""
        self._steps.on_started()
        if (self._for_start or self._for_transfer) and runtime.active:
            _contained(self._waiting.check)
        if self.ec is not None:
            _contained(self.ec.before_schedule)

    @guarded(_HOOK, default=None)
    def after_schedule(self, output: Any) -> None:
        """Record what the step loads, and which requests it schedules for the first time; *output* is the step's."""
        self._steps.on_scheduled(output)
        if self.scan.looked is not None:
            self.scan.settle()
        if self.ec is not None:
            _contained(self.ec.after_schedule, output)
        if self._allocated:
            _contained(self.loads.after_schedule, output)
        if output.scheduled_new_reqs:
            if self._has_connector:
                self._keep_media(output)
            if runtime.active:
                _contained(self.observer.on_scheduled, output.scheduled_new_reqs, self._scheduler.requests)

    @guarded(_HOOK, default=None)
    def _keep_media(self, output: Any) -> None:
        """Have the workers know all media of requests that a failed load could send back."""
        keep = self.loads.needs_media or (self.ec is not None and self.ec.needs_media)
        self.media.after_schedule(output, keep=keep)

    @guarded(_HOOK, default=False)
    def refuses(self, request: Any, to_encode: Iterable[int]) -> bool:
        """Fail a request of which vLLM would encode an input that cannot be encoded here; tell whether it fails."""
        return (self.ec is not None and self.ec.refuses(request, to_encode)) or self.loads.refuses(
            request, to_encode
        )

    @guarded(_HOOK, default=None)
    def before_update(self, scheduler_output: Any, model_runner_output: Any) -> RecoveryPlan | None:
        """Apply the result of a step; return what is to be done about its failed KV loads.

        None where vLLM's own configuration decides. Failed encoder outputs are dealt with here.
        """
        plan = None
        # Empty or None unless VLLM_COMPUTE_NANS_IN_LOGITS is set.
        nans = model_runner_output.num_nans_in_logits
        if nans and runtime.active:
            _contained(self.observer.on_nans, nans)
        moved = model_runner_output.kv_connector_output
        # In most steps the workers report nothing.
        if (
            moved is not None
            and runtime.active
            and (
                moved.kv_connector_worker_meta is not None
                or moved.finished_recving
                or moved.invalid_block_ids
                or failed_receives(moved)
            )
        ):
            self._on_worker_report(moved)
            plan = self.plan_failed_loads(moved)
        elif self._left and runtime.active:
            plan = self.plan_failed_loads(moved)
        if self._unconfirmed:
            _contained(self.loads.on_step_result, scheduler_output)
        if self.ec is not None:
            self._on_ec_result(scheduler_output, model_runner_output)
        return plan

    @guarded(_HOOK, default=None)
    def _on_worker_report(self, output: Any) -> None:
        self.observer.on_worker_report(output.kv_connector_worker_meta)
        self.loads.on_worker_report(output)

    @guarded(_HOOK, default=None)
    def plan_failed_loads(self, output: Any) -> RecoveryPlan | None:
        """Decide about the failed loads in a ``KVConnectorOutput``; None where vLLM's own configuration does."""
        return self.loads.plan(output)

    @guarded(_HOOK, default=None)
    def _on_ec_result(self, scheduler_output: Any, model_runner_output: Any) -> None:
        if self.ec is not None:
            self.ec.on_step_result(
                scheduler_output.ec_connector_metadata, model_runner_output.ec_connector_output
            )

    @guarded(_HOOK, default=None)
    def after_update(self, scheduler_output: Any, outputs: Any) -> None:
        """Attach the reasons of failed requests to the step's *outputs*; note first tokens."""
        self._steps.on_updated(scheduler_output)
        if self._failing and runtime.active:
            _contained(self._failing.attach_errors, outputs)
        if self.ec is not None:
            _contained(self.ec.failing.attach_errors, outputs)
        if self._awaiting_token and runtime.active:
            _contained(self.observer.after_step)

    # Snapshot

    def fill(self, snapshot: Snapshot) -> None:
        """Add the engine's facts, its gauges and what it does about failed loads; on the exporter's thread."""
        self._steps.fill(snapshot.progress)
        self.observer.fill(snapshot)
        self.gate.fill(snapshot)
        if self.ec is not None:
            self.ec.fill(snapshot)
        role = runtime.identity.role or engine_identity.guess_role(self._config, self.observer.roles.copy())
        facts = snapshot.engine
        for name, value in self._facts.items():
            setattr(facts, name, value)
        facts.role = ROLES.get(role, 0)  # type: ignore[assignment]
        facts.role_guessed = bool(role) and (runtime.identity.role_guessed or not runtime.identity.role)
        settings = runtime.settings
        if settings is not None:
            facts.labels.update(settings.labels)
            facts.faults_allowed = settings.allow_faults
        self._weights.start()
        for name, value in self._weights.fields.items():
            setattr(facts.weights, name, value)
        facts.compatibility_hash = self.observer.compatibility_hash
        facts.compatibility_factors.update(self.observer.compatibility_factors)
        rule = runtime.policy.current.kv_load_failure if runtime.active else None
        action = rule.action if rule is not None else None
        snapshot.policy.kv_action = (action or self._own_action).value if self._connector is not None else ""


def outlives_failures(config: Any) -> bool:
    """Return whether an engine goes on after a step that failed: vLLM 0.33's ``--enable-fault-tolerance``."""
    return bool(getattr(config.parallel_config, "enable_fault_tolerance", False))


@guarded(_HOOK, default=None)
def _contained(part: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call one of several parts that act at one hook point."""
    part(*args, **kwargs)
