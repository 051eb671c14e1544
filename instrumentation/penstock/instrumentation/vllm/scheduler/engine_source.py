"""The engine as a source: who it is, and its part of the snapshot."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import ROLES, guard
from penstock.instrumentation.resilience import Action
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import EcLoadController, EcSchedulerSideMixin
from penstock.instrumentation.vllm.kv.load_controller import KvLoadController
from penstock.instrumentation.vllm.naming import engine_identity
from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
from penstock.instrumentation.vllm.requests import SchedulerObserver

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Snapshot

POLICY_FIELDS = ("kv_load_failure", "ec_load_failure", "deferral", "peer_quarantine", "telemetry")
"""What this engine, or the agent for it (the traces' sample ratio), acts upon; a policy with anything else is refused."""


class EngineSource:
    """One scheduler and what is true of it while it runs.

    Attributes:
        moves: it has a connector, so that something can fail to load.

    """

    def __init__(self, scheduler: Any) -> None:
        """Read the facts of *scheduler*, which is built but has not run."""
        self._config = scheduler.vllm_config
        self._own_action = Action.RECOMPUTE if scheduler.recompute_kv_load_failures else Action.FAIL
        self._connector = scheduler.connector
        self._facts = _facts(scheduler)
        self.observer = SchedulerObserver(self._facts["kv_connector"])
        self.media = WorkerEncoderInputs(scheduler)
        self.loads = KvLoadController(scheduler, self.observer, self.media)
        self._ec_connector = scheduler.ec_connector
        self.moves = self._connector is not None or self._ec_connector is not None
        self.ec: EcLoadController | None = None
        # Without the connector's mixin nobody would tell it anything.
        if isinstance(self._ec_connector, EcSchedulerSideMixin):
            with guard("ec_connector"):
                self.ec = EcLoadController(scheduler, self.observer, self.media)

    @classmethod
    def of(cls, scheduler: Any) -> EngineSource:
        """Return the source of *scheduler*."""
        return cls(scheduler)

    def start(self) -> EngineSource:
        """Say who this process is, follow the policy, contribute to the snapshot; returns itself."""
        runtime.identify(
            process="engine-core",
            key=engine_identity.engine_index(self._config),
            role=engine_identity.guess_role(self._config),
            model=self._facts["model"],
            vllm_version=self._facts["vllm_version"],
        )
        if self._connector is not None:
            # Read by the connector's own mixin, where that is installed.
            self._connector._penstock_scheduler = self.observer
            self._connector._penstock_loads = self.loads
        if self.ec is not None:
            self._ec_connector._penstock_ec = self.ec
            runtime.policy.subscribe(self.ec.follow)
        runtime.snapshots.add("scheduler", self.fill)
        runtime.policy.subscribe(self.loads.follow)
        runtime.start_policy(POLICY_FIELDS)
        return self

    def stop(self) -> None:
        """Follow the policy no longer, and contribute nothing to the snapshot."""
        runtime.snapshots.remove("scheduler")
        runtime.policy.unsubscribe(self.loads.follow)
        if self.ec is not None:
            runtime.policy.unsubscribe(self.ec.follow)

    def fill(self, snapshot: Snapshot) -> None:
        """Add the engine's facts, its gauges and what it does about failed loads; on the exporter's thread."""
        self.observer.fill(snapshot)
        self.loads.fill(snapshot)
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
        facts.compatibility_hash = self.observer.compatibility_hash
        facts.compatibility_factors.update(self.observer.compatibility_factors)
        rule = runtime.policy.current.kv_load_failure if runtime.active else None
        action = rule.action if rule is not None else None
        snapshot.policy.kv_action = (action or self._own_action).value if self._connector is not None else ""


def _facts(scheduler: Any) -> dict[str, Any]:
    """Return the fields of ``EngineFacts`` that do not change while the engine runs."""
    config = scheduler.vllm_config
    transfer, encoder = config.kv_transfer_config, config.ec_transfer_config
    facts = {
        "model": engine_identity.model_name(config),
        "vllm_version": engine_identity.vllm_version(),
        "kv_connector": str(transfer.kv_connector or "") if transfer is not None else "",
        "kv_role": str(transfer.kv_role or "") if transfer is not None else "",
        "kv_engine_id": str(transfer.engine_id or "") if transfer is not None else "",
        "kv_load_failure_policy": str(transfer.kv_load_failure_policy) if transfer is not None else "",
        "ec_connector": str(encoder.ec_connector or "") if encoder is not None else "",
        "ec_role": str(encoder.ec_role or "") if encoder is not None else "",
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "data_parallel_size": config.parallel_config.data_parallel_size,
        "block_size": scheduler.block_size,
        "num_gpu_blocks": config.cache_config.num_gpu_blocks or 0,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "scheduler_class": f"{type(scheduler).__module__}.{type(scheduler).__qualname__}",
        "start_time_unix_nano": time.time_ns(),
    }
    listener = getattr(scheduler.connector, "connector_scheduler", None)
    host, port = getattr(listener, "side_channel_host", None), getattr(listener, "side_channel_port", None)
    facts["side_channel"] = f"{host}:{port}" if host and port else ""
    return facts
