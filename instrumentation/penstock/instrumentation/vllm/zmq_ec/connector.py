"""``ZmqECConnector``: vLLM's interface of an encoder-cache connector, in both of its roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.naming import address
from penstock.instrumentation.vllm.zmq_ec import settings
from penstock.instrumentation.vllm.zmq_ec.consumer import Expected
from penstock.instrumentation.vllm.zmq_ec.consumer.scheduler import ConsumerScheduler
from penstock.instrumentation.vllm.zmq_ec.consumer.worker import ConsumerWorker
from penstock.instrumentation.vllm.zmq_ec.metadata import StepOrders, StepReport
from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker
from penstock.instrumentation.vllm.zmq_ec.wire import curve, protocol
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.utils import (
    PlaceholderMetadataResolver,
    collect_ec_item_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.ec import EcFailure, EcListener
    from penstock.instrumentation.vllm.naming import Peer
    from vllm.config import VllmConfig
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

_WILDCARDS = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104  (not bound: not announced)


class ZmqECConnector(ECConnectorBase):  # type: ignore[misc]  # Any, without vLLM
    """Moves encoder outputs over ZeroMQ, ahead of scheduling; in the scheduler all that ``vllm/ec/protocol.py`` describes.

    A producer listens at ``ec_ip`` and ``ec_port`` (plus the data-parallel index) and announces that address to consumers;
    the keys of ``ec_connector_extra_config`` are those of ``settings.py``.
    """

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        """Check the configuration, reserve the memory, and in a producer's worker listen.

        Raises:
            ValueError: the configuration or a key file is wrong, or this engine's shape cannot work with it.
            OutOfMemoryError, RegionError: the memory cannot be had.

        """
        super().__init__(vllm_config=vllm_config, role=role)
        ec, model, parallel = (
            vllm_config.ec_transfer_config,
            vllm_config.model_config,
            vllm_config.parallel_config,
        )
        if ec is None:
            raise ValueError("ec_transfer_config must be set for ZmqECConnector")
        self._settings = settings.load(
            ec.ec_connector_extra_config,
            ip=ec.ec_ip,
            port=ec.ec_port,
            buffer_bytes=ec.ec_buffer_size,
            model=str(model.model),
            data_parallel_index=parallel.data_parallel_index,
        )
        hidden_size = model.get_inputs_embeds_size()
        digest = protocol.model_digest(self._settings.model, hidden_size)
        self.load_failure_default = self._settings.consumer.load_failure
        self._resolver = PlaceholderMetadataResolver(model)
        self._consumer: ConsumerScheduler | None = None
        self._loader: ConsumerWorker | None = None
        self._publisher: ProducerWorker | None = None
        self._publish: list[str] = []
        # vLLM runs no connector in the step of an encoder-decoder model.
        consumes = self.is_consumer and not model.is_encoder_decoder
        if consumes:
            _check_shape(parallel)
        if role is ECConnectorRole.SCHEDULER:
            if consumes:
                dtype = str(model.dtype).removeprefix("torch.")
                self._consumer = ConsumerScheduler(
                    self._settings.consumer,
                    Expected(digest, dtype, hidden_size),
                    ranks=_reporting_ranks(parallel),
                    has_media=self._has_media,
                    keys=curve.load_client_keys(self._settings.curve),
                )
            return
        if consumes:
            self._loader = ConsumerWorker()
        if self.is_producer and _is_first_rank():
            self._publisher = ProducerWorker(
                self._settings.host,
                self._settings.port,
                digest,
                self._settings.host_cache_bytes,
                curve.load_server_keys(self._settings.curve),
            )

    def shutdown(self) -> None:
        """Stop threads, close sockets, release memory. Idempotent."""
        for part in (self._consumer, self._loader, self._publisher):
            if part is not None:
                part.close()

    # The worker's side.

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Copy what this step loads from the shared memory into *encoder_cache*."""
        del kwargs
        if self._loader is not None:
            from vllm.platforms import current_platform

            orders = self._get_connector_metadata()
            if isinstance(orders, StepOrders):
                self._loader.load(
                    orders.loads,
                    orders.region,
                    encoder_cache,
                    current_platform.device_type,
                    guarded=bool(getattr(orders, "penstock_guarded", False)),
                )

    def start_save_caches(self, encoder_cache: dict[str, torch.Tensor] | None = None, **kwargs: Any) -> None:
        """Publish the items of this step's requests that vLLM still has encoded and the host cache has evicted."""
        del kwargs
        orders = self._connector_metadata
        if self._publisher is not None and encoder_cache and isinstance(orders, StepOrders):
            self._publisher.publish_again(orders.publish, encoder_cache)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Publish an item that was just encoded."""
        del kwargs
        if self._publisher is not None:
            self._publisher.save(mm_hash, encoder_cache[mm_hash])

    def build_connector_worker_meta(self) -> StepReport | None:
        """Return this rank's report of loaded slots to the scheduler."""
        loaded = None if self._loader is None else self._loader.report()
        return None if loaded is None else StepReport(loaded)

    # The scheduler's side.

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        """Start fetching what the request needs; False while an item is probed, waits for room or is in transit."""
        return self._consumer is None or self._consumer.ensure(request, num_computed_tokens)

    def has_cache_item(self, identifier: str) -> bool:
        """Whether the item can be loaded in this step. Never blocks."""
        return self._consumer is not None and self._consumer.has(identifier)

    def take_unavailable_requests(self) -> set[str]:
        """Return the requests whose items can neither be loaded nor encoded here."""
        return set() if self._consumer is None else self._consumer.drain_unavailable()

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        """Order the load of an item that was promised in this step."""
        if self._consumer is not None:
            self._consumer.on_allocated(request.mm_features[index].identifier, request.request_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepOrders:
        """Return this step's orders to the workers."""
        orders = StepOrders()
        if self.is_producer:
            orders.publish = tuple(
                dict.fromkeys(
                    feature.identifier
                    for new in scheduler_output.scheduled_new_reqs
                    for feature in new.mm_features
                )
            )
        if self._consumer is not None:
            orders.loads, orders.region = self._consumer.end_step(scheduler_output.free_encoder_mm_hashes)
        return orders

    def update_connector_output(self, connector_output: ECConnectorOutput) -> None:
        """Apply the workers' report."""
        report = connector_output.ec_connector_worker_meta
        if self._consumer is not None and isinstance(report, StepReport):
            self._consumer.on_report(report.loaded)

    def get_ec_connector_stats(self) -> ECConnectorStats | None:
        """Return what was moved and asked since the last call. The scheduler's side knows all; a worker's has none."""
        data = None if self._consumer is None else self._consumer.take_statistics()
        return None if data is None else self.build_ec_connector_stats(data)

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ECConnectorStats:
        """Return the statistics that hold *data*."""
        # Not in every vLLM, and only who asks for them needs them.
        from penstock.instrumentation.vllm.zmq_ec.statistics import ZmqECConnectorStats

        return ZmqECConnectorStats(data)

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        """Return where a producer's items can be fetched; nothing is kept for the request."""
        if self._consumer is not None:
            self._consumer.on_finished(request.request_id)
        if not self.is_producer or not request.mm_features:
            return False, None
        items = collect_ec_item_metadata(request.mm_features, self._resolver)
        if self.announced_address:
            for entry in items.values():
                entry["peer_host"], entry["peer_port"] = self._settings.host, self._settings.port
        return False, items or None

    # Beyond vLLM's interface: EcLoader.

    @property
    def announced_address(self) -> str:
        """Where consumers are told to fetch a producer's items; empty for nowhere."""
        told = self.is_producer and self._settings.port and self._settings.host not in _WILDCARDS
        return address(self._settings.host, self._settings.port) if told else ""

    def observe(self, observer: EcListener) -> None:
        """Report to *observer* from now on; in the scheduler it also decides about failed loads."""
        if self._consumer is not None:
            self._consumer.observe(observer)
        if self._publisher is not None:
            self._publisher.server.observer = observer

    def take_failed_loads(self) -> list[EcFailure]:
        """Return the loads that were given up since the last call."""
        return [] if self._consumer is None else self._consumer.drain_failures()

    def waits_for(self, item: str) -> bool:
        """Return whether *item* is probed, waits for room or is in transit."""
        return self._consumer is not None and self._consumer.items.is_pending(item)

    def transfer_began(self, item: str) -> int | None:
        """Return when the transfer of *item* began (wall clock, ns), None while it has not."""
        return None if self._consumer is None else self._consumer.items.transfer_start(item)

    def peer_of(self, item: str) -> Peer | None:
        """Return the producer of *item*, if it is known."""
        return None if self._consumer is None else self._consumer.items.peer_of(item)

    def give_up(self, item: str) -> None:
        """Stop fetching *item*; it is bad for ``bad_for`` seconds."""
        if self._consumer is not None:
            self._consumer.give_up(item)

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, transfers that move, the oldest one's start). From any thread."""
        return [] if self._consumer is None else self._consumer.items.in_flight()

    # EcPeerSource, EcChecksums, EcRehearsal.

    def candidates(self, request: Request, feature: Any) -> tuple[str, ...]:
        """Return the producers that would be asked for the item of *feature*."""
        return () if self._consumer is None else self._consumer.candidates(request, feature)

    def keep_to(self, request: Request, feature: Any, peers: tuple[str, ...]) -> None:
        """Ask only these producers for the item of *feature* in the call of ``ensure_cache_available`` that follows."""
        if self._consumer is not None:
            self._consumer.keep_to(request.request_id, feature.identifier, peers)

    def connected(self) -> frozenset[str]:
        """Return the addresses of the producers that answer. From any thread."""
        return frozenset() if self._consumer is None else self._consumer.connected

    def checksum(self, item: str) -> int | bytes | None:
        """Return the checksum by which the producer of *item* names its content."""
        return None if self._consumer is None else self._consumer.items.checksum(item)

    def rehearse(self, hit: Callable[[int, str], Drill | None]) -> None:
        """Let *hit* choose the probes and transfers that fail or are slow."""
        if self._consumer is not None:
            self._consumer.rehearse(hit)

    def rehearsed(self, item: str) -> bool:
        """Return whether a drill makes *item* late."""
        return self._consumer is not None and self._consumer.items.is_rehearsed(item)

    def _has_media(self, feature: Any) -> bool:
        """Whether the feature can be encoded here: it has more than the size of its place in the prompt."""
        if not feature.data:
            return False
        place = self._resolver.fields_for(feature.modality)
        return any(value.data is not None for key, value in feature.data.items() if key not in place)


def _check_shape(parallel: Any) -> None:
    """Refuse engines whose workers are not where the scheduler's memory is."""
    if parallel.nnodes_within_dp > 1:
        raise ValueError(
            f"ZmqECConnector cannot load into an engine on {parallel.nnodes_within_dp} nodes: its workers map memory of "
            "the scheduler's process. Use an engine that fits on one node, or another EC connector."
        )
    backend = parallel.distributed_executor_backend
    if parallel.world_size > 1 and backend not in ("mp", "uni", None):
        raise ValueError(
            f"ZmqECConnector cannot load into an engine with distributed_executor_backend {backend!r}: its workers map "
            "memory of the scheduler's process, and only it knows what has come. Use mp."
        )


def _reporting_ranks(parallel: Any) -> int:
    """Return how many workers' reports of a load reach the scheduler: those of the first pipeline stage, with mp."""
    if parallel.distributed_executor_backend != "mp":
        return 1
    return int(parallel.tensor_parallel_size * parallel.prefill_context_parallel_size)


def _is_first_rank() -> bool:
    """Whether this worker publishes: all ranks of the first pipeline stage have the same outputs."""
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return True
    groups = (parallel_state.get_tp_group(), parallel_state.get_pcp_group(), parallel_state.get_pp_group())
    return all(group.rank_in_group == 0 for group in groups)
