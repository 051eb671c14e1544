"""Instruments the parts of an ``ECMooncakeConnector``. Imports vLLM's modules of it only where one was built, or for a survey."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import Extension, InstanceState, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import EcObserver, PartHook, has_name
from penstock.instrumentation.vllm.ec.mooncake.loads import STATES, MooncakeLoads, MooncakeSchedulerMixin
from penstock.instrumentation.vllm.ec.mooncake.receiver import MooncakeReceiver
from penstock.instrumentation.vllm.ec.mooncake.sender import SentPushes
from penstock.instrumentation.vllm.ec.mooncake.worker_mixins import (
    ControlClientMixin,
    MooncakeEcWorkerMixin,
    PushManagerMixin,
    ReservationsMixin,
)
from penstock.instrumentation.vllm.naming import Peer, address, peers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need

_CONNECTOR: Final = "ECMooncakeConnector"


class MooncakeEc:
    """The adapter of ``ECMooncakeConnector``."""

    def __init__(self) -> None:
        self._scheduler = PartHook("ec_mooncake_scheduler", c.COMPONENT_SCHEDULER, _scheduler_needs)
        self._worker = PartHook("ec_mooncake_worker", c.COMPONENT_WORKER, _worker_needs)
        self._numbers = itertools.count()

    def matches(self, connector: Any) -> bool:
        """Return whether it is one."""
        return has_name(connector, _CONNECTOR)

    def hooks(self) -> Iterable[PartHook]:
        """Return the hooks on the scheduler's and the worker's part."""
        return self._scheduler, self._worker

    def on_scheduler_side(self, connector: Any) -> MooncakeLoads | None:
        """Instrument the connector's scheduler."""
        part = connector._scheduler
        if part is None or not self._scheduler.fits():
            return None
        loads = MooncakeLoads(part)
        self._scheduler.swaps.swap(part, MooncakeSchedulerMixin)
        part._penstock_loads = loads
        return loads

    def on_worker_side(self, config: Any, connector: Any, worker: Any) -> None:
        """Instrument the connector's worker: what it receives, and what it sends."""
        part = connector._worker
        if part is None or not self._worker.fits():
            return
        observer = EcObserver(_CONNECTOR, c.COMPONENT_WORKER, config.parallel_config.rank)
        receiver = MooncakeReceiver(observer, worker)
        sent = SentPushes(observer)
        swap = self._worker.swaps.swap
        swap(part, MooncakeEcWorkerMixin)
        swap(part._reservations, ReservationsMixin)
        swap(part._producer_pushes, PushManagerMixin)
        swap(part._control_client, ControlClientMixin)
        part._penstock_receiver = part._reservations._penstock_receiver = receiver
        part._producer_pushes._penstock_sent = sent
        part._control_client._penstock_name = _own_name(config, part)
        part._penstock_snapshot = f"ec_mooncake.{next(self._numbers)}"
        worker.leave_transfers()

        def fill(snapshot: Any) -> None:
            receiver.fill(snapshot)
            sent.fill(snapshot)

        runtime.snapshots.add(part._penstock_snapshot, fill)


def _own_name(config: Any, part: Any) -> Peer:
    """Return how consumers call this producer: its host as Mooncake knows it, and its ``ec_port``, which no other on it should have."""
    return Peer(
        address(part._transfer._hostname, part._control_port),
        peers.identifier(config.ec_transfer_config.engine_id),
    )


def _scheduler_needs() -> list[Need]:
    from vllm.distributed.ec_transfer.ec_connector.mooncake.metadata import ECMooncakeWorkerMetadata
    from vllm.distributed.ec_transfer.ec_connector.mooncake.scheduler import ECMooncakeScheduler
    from vllm.distributed.ec_transfer.ec_connector.mooncake.state import (
        SchedulerTransfer,
        SchedulerTransferState,
        SchedulerTransferTable,
    )

    return [
        Extension(MooncakeSchedulerMixin, ECMooncakeScheduler),
        Requirement(ECMooncakeScheduler, "ensure_cache_available", ("request", "num_computed_tokens")),
        Requirement(ECMooncakeScheduler, "_accept_ready_event", ("data",)),
        Requirement(ECMooncakeScheduler, "build_connector_meta", ("scheduler_output",)),
        Requirement(ECMooncakeScheduler, "update_connector_output", ("connector_output",)),
        InstanceState(ECMooncakeWorkerMetadata, ("loaded",)),
        Requirement(ECMooncakeScheduler, "_request_transfer_id", ("request", "index")),
        InstanceState(ECMooncakeScheduler, ("_local_cache", "_transfers", "_push_wait_timeout")),
        Requirement(SchedulerTransferTable, "get", ("transfer_id",)),
        Requirement(SchedulerTransferTable, "records_for_hash", ("mm_hash", "states")),
        InstanceState(
            SchedulerTransfer, ("transfer_id", "request_id", "mm_hash", "state", "notified_requests")
        ),
        *(Requirement(SchedulerTransferState, name) for name in STATES),
    ]


def _worker_needs() -> list[Need]:
    from vllm.distributed.ec_transfer.ec_connector.mooncake.control import ControlClient
    from vllm.distributed.ec_transfer.ec_connector.mooncake.producer import (
        ProducerPushManager,
        ProducerPushRecord,
        ProducerPushState,
    )
    from vllm.distributed.ec_transfer.ec_connector.mooncake.reservation import ConsumerReservationManager
    from vllm.distributed.ec_transfer.ec_connector.mooncake.worker import ECMooncakeWorker

    return [
        Extension(MooncakeEcWorkerMixin, ECMooncakeWorker),
        Requirement(ECMooncakeWorker, "_reserve_push_destination", ("payload",)),
        Requirement(ECMooncakeWorker, "_push_status", ("transfer_id",)),
        Requirement(ECMooncakeWorker, "start_load_caches", ("metadata", "encoder_cache")),
        InstanceState(
            ECMooncakeWorker,
            (
                "_reservations", "_producer_pushes", "_control_client", "_control_port", "_transfer",
                "_completed_loads", "_failed_loads",
            ),
        ),
        Extension(ReservationsMixin, ConsumerReservationManager),
        Requirement(ConsumerReservationManager, "complete", ("transfer_id", "reservation_id")),
        Requirement(ConsumerReservationManager, "cancel", ("transfer_id", "refresh")),
        Requirement(ConsumerReservationManager, "retire_stale", ("encoder_cache", "freed")),
        Requirement(ConsumerReservationManager, "_terminate", ("record", "state")),
        Requirement(ConsumerReservationManager, "_defer", ("record", "state")),
        Extension(PushManagerMixin, ProducerPushManager),
        Requirement(ProducerPushManager, "_transition", ("record", "state")),
        Requirement(ProducerPushManager, "_set_error", ("record", "error")),
        InstanceState(ProducerPushRecord, ("spec", "state", "reservations", "error")),
        *(
            Requirement(ProducerPushState, name)
            for name in ("WAITING_INPUTS", "WRITING", "NOTIFYING", "DONE", "CANCEL_PENDING", "CANCELLED", "FAILED")
        ),
        Extension(ControlClientMixin, ControlClient),
        Requirement(ControlClient, "request", ("addr", "payload")),
    ]  # fmt: skip
