"""Instruments the parts of an ``ECCPUConnector``. Imports vLLM's modules of it only where one was built, or for a survey."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import Extension, InstanceState, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import EcObserver, PartHook, has_name
from penstock.instrumentation.vllm.ec.cpu.copies import Copies, CpuWorkerMixin
from penstock.instrumentation.vllm.ec.cpu.loads import CpuLoads, RemoteCpuLoads
from penstock.instrumentation.vllm.ec.cpu.scheduler_mixin import (
    ConsumerSessionMixin,
    CpuSchedulerMixin,
    Grants,
    ProducerSessionMixin,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need

_CONNECTOR: Final = "ECCPUConnector"


class CpuEc:
    """The adapter of ``ECCPUConnector``."""

    def __init__(self) -> None:
        self._scheduler = PartHook("ec_cpu_scheduler", c.COMPONENT_SCHEDULER, _scheduler_needs)
        self._worker = PartHook("ec_cpu_worker", c.COMPONENT_WORKER, _worker_needs)
        self._numbers = itertools.count()

    def matches(self, connector: Any) -> bool:
        """Return whether it is one."""
        return has_name(connector, _CONNECTOR)

    def hooks(self) -> Iterable[PartHook]:
        """Return the hooks on the scheduler's and the worker's part."""
        return self._scheduler, self._worker

    def on_scheduler_side(self, connector: Any) -> CpuLoads | None:
        """Instrument the connector's scheduler, and its session as a producer."""
        part = connector.connector_scheduler
        if part is None or not self._scheduler.fits():
            return None
        swaps = self._scheduler.swaps
        kind = RemoteCpuLoads if part._nixl_enabled and part._is_consumer else CpuLoads
        loads = kind(part, lambda session: swaps.swap(session, ConsumerSessionMixin))
        swaps.swap(part, CpuSchedulerMixin)
        part._penstock_loads = loads
        session = part._producer_session
        if session is not None:
            observer = EcObserver(_CONNECTOR, c.COMPONENT_SCHEDULER)
            swaps.swap(session, ProducerSessionMixin)
            session._penstock_grants = Grants(observer, part._region.block_size_bytes)
        return loads

    def on_worker_side(self, config: Any, connector: Any, worker: Any) -> None:
        """Instrument the connector's worker."""
        part = connector.connector_worker
        if part is None or not self._worker.fits():
            return
        copies = Copies(EcObserver(_CONNECTOR, c.COMPONENT_WORKER, config.parallel_config.rank))
        self._worker.swaps.swap(part, CpuWorkerMixin)
        part._penstock_copies = copies
        part._penstock_snapshot = f"ec_cpu.{next(self._numbers)}"
        worker.leave_transfers()
        runtime.snapshots.add(part._penstock_snapshot, copies.fill)


def _scheduler_needs() -> list[Need]:
    from vllm.distributed.ec_transfer.ec_connector.cpu.protocol import XferStatus
    from vllm.distributed.ec_transfer.ec_connector.cpu.scheduler import ECCPUScheduler
    from vllm.distributed.ec_transfer.ec_connector.cpu.scheduler.embedding_cache import EmbeddingCache
    from vllm.distributed.ec_transfer.ec_connector.cpu.session import (
        ConsumerSession,
        ConsumerSessionResults,
        ConsumerXfer,
        ProducerSession,
        ProducerXfer,
    )

    return [
        Extension(CpuSchedulerMixin, ECCPUScheduler),
        Requirement(ECCPUScheduler, "_fail_or_fallback", ("request", "feature", "why")),
        Requirement(ECCPUScheduler, "_admit_item", ("request", "feature")),
        Requirement(ECCPUScheduler, "_start_xfer", ("mm_hash", "info", "size_bytes")),
        InstanceState(
            ECCPUScheduler,
            (
                "_in_flight", "_step_completed", "_deferred_since", "_sessions", "_producer_session", "_region",
                "_cache", "_tombstones", "_nixl_enabled", "_is_consumer",
            ),
        ),
        Requirement(EmbeddingCache, "get", ("key",)),
        Extension(ConsumerSessionMixin, ConsumerSession),
        Requirement(ConsumerSession, "_dispatch_ack", ("ack",)),
        Requirement(ConsumerSession, "_ensure_registered"),
        Requirement(ConsumerSession, "take_results"),
        Requirement(ConsumerSession, "on_peer_down"),
        InstanceState(ConsumerSession, ("_xfers", "_nixl_agent_name")),
        InstanceState(ConsumerSessionResults, ("completed", "tombstoned", "quarantined", "retryable")),
        InstanceState(ConsumerXfer, ("transfer_handle",)),
        Extension(ProducerSessionMixin, ProducerSession),
        Requirement(ProducerSession, "_grant_or_nack", ("req",)),
        Requirement(ProducerSession, "_drain_notifs"),
        Requirement(ProducerSession, "_sweep_timeouts"),
        InstanceState(ProducerSession, ("_active_xfers",)),
        InstanceState(ProducerXfer, ("mm_hash", "block_indices")),
        *(
            Requirement(XferStatus, name)
            for name in ("OK", "NACK_MISSING", "NACK_INCOMPAT", "NACK_VERSION", "NACK_INTERNAL", "NACK_NOT_READY")
        ),
    ]  # fmt: skip


def _worker_needs() -> list[Need]:
    from vllm.distributed.ec_transfer.ec_connector.cpu.worker import ECCPUWorker, Transfer

    return [
        Extension(CpuWorkerMixin, ECCPUWorker),
        Requirement(ECCPUWorker, "start_load_caches", ("encoder_cache", "connector_metadata")),
        Requirement(ECCPUWorker, "save_caches", ("encoder_cache", "mm_hash", "connector_metadata")),
        Requirement(ECCPUWorker, "_collect_finished", ("inflight", "direction")),
        InstanceState(ECCPUWorker, ("_region", "_is_save_rank")),
        InstanceState(Transfer, ("start_event", "end_event", "completions")),
    ]
