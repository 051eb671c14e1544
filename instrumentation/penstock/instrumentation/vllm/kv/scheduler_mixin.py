"""KV connectors: whatever vLLM's factory builds keeps its class's name and gains a mixin.

On the scheduler's side it tells of look-ups and loads, on the worker's side what becomes of them (kv_worker.py). NIXL's
worker is instrumented more deeply (nixl.py).
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Extension, Patch, Requirement, Swaps
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base import KvStepLoads, KvWorkers
from penstock.instrumentation.vllm.kv.load_controller import LoadAdmission
from penstock.instrumentation.vllm.kv.nixl import NixlWorkers, compatibility
from penstock.instrumentation.vllm.messages import WorkerReport
from penstock.instrumentation.vllm.naming import engine_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.instrumentation.hooks import Need
    from penstock.instrumentation.vllm.kv.load_controller import KvLoadController
    from penstock.instrumentation.vllm.kv.nixl import NixlObserver
    from penstock.instrumentation.vllm.requests import SchedulerObserver

_GUARD = guard("kv_connector")

# What get_num_new_matched_tokens says in the place of the connector: nothing to load, or "ask again later", which
# keeps a request that is about to fail out of the batch.
_ANSWERS = {LoadAdmission.LOCAL: (0, False), LoadAdmission.FAIL: (None, False)}


class SchedulerSideMixin(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over a connector in the scheduler.

    Set by the scheduler's mixin, on the outermost: whom to tell, and whom to ask. Set by the hook, on those that move
    something themselves: what they load in the step that is being put together.
    """

    _penstock_scheduler: SchedulerObserver | None = None
    _penstock_loads: KvLoadController | None = None
    _penstock_step: KvStepLoads | None = None

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Note that the connector asks for patience, and that it no longer does; keep requests from quarantined peers."""
        host: Any = super()
        result = host.get_num_new_matched_tokens(request, num_computed_tokens, *args, **kwargs)
        observer, loads, step = self._penstock_scheduler, self._penstock_loads, self._penstock_step
        if step is not None and result[0] and runtime.active:
            with _GUARD:
                step.found(request.request_id, waits=bool(result[1]))
        if observer is None:
            return result
        if result[0] is None:
            if runtime.active:
                with _GUARD:
                    observer.deferred(request, c.DEFERRAL_REASON_KV_LOOKUP)
            return result
        if observer.is_deferred(request.request_id):
            with _GUARD:
                observer.ready(request.request_id, c.DEFERRAL_REASON_KV_LOOKUP)
        if loads is not None and runtime.active:
            with _GUARD:
                return _ANSWERS.get(loads.admit(request, num_computed_tokens, result[0]), result)
        return result

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Note that a remote load begins, before vLLM parks the request for it."""
        host: Any = super()
        loads, step = self._penstock_loads, self._penstock_step
        if loads is not None and runtime.active:
            with _GUARD:
                loads.load_begins(request, num_external_tokens)
        if step is not None and num_external_tokens and runtime.active:
            with _GUARD:
                step.begins(request.request_id, num_external_tokens)
        return host.update_state_after_alloc(request, blocks, num_external_tokens, *args, **kwargs)

    def get_external_cache_hit_sources(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Note where a load comes from; vLLM asks once it has begun, in versions that have the question."""
        host: Any = super()
        sources = host.get_external_cache_hit_sources(request, *args, **kwargs)
        step = self._penstock_step
        if step is not None and runtime.active:
            with _GUARD:
                step.comes_from(request.request_id, sources)
        return sources

    def request_finished(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Let nothing be said to a quarantined peer."""
        host: Any = super()
        self._penstock_forget(request)
        return host.request_finished(request, *args, **kwargs)

    def request_finished_all_groups(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Let nothing be said to a quarantined peer; only connectors for several groups have this method."""
        host: Any = super()
        self._penstock_forget(request)
        return host.request_finished_all_groups(request, *args, **kwargs)

    def _penstock_forget(self, request: Any) -> None:
        loads, step = self._penstock_loads, self._penstock_step
        if step is not None:
            with _GUARD:
                step.left(request.request_id)
        if loads is not None and runtime.active:
            with _GUARD:
                loads.forget_peer(request)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Put the scheduler's orders for the workers on the metadata of the step (``worker_orders.py``)."""
        host: Any = super()
        metadata = host.build_connector_meta(scheduler_output)
        loads, step = self._penstock_loads, self._penstock_step
        if step is not None and runtime.active:
            with _GUARD:
                step.attach(self, metadata, scheduler_output)
        if loads is not None and runtime.active:
            with _GUARD:
                loads.attach(metadata)
        return metadata

    def update_connector_output(self, connector_output: Any) -> Any:
        """Give the connector its own worker metadata, without our report around it."""
        host: Any = super()
        metadata = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(metadata, WorkerReport):
            connector_output.kv_connector_worker_meta = metadata.inner
        return host.update_connector_output(connector_output)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> Any:
        """Note the compatibility hash that the workers show their peers, and what it is made of."""
        host: Any = super()
        observer = self._penstock_scheduler
        if observer is not None:
            with _GUARD:
                hashes = {getattr(each, "compatibility_hash", "") for each in metadata.values()}
                if len(hashes) == 1 and (shown := next(iter(hashes))):
                    observer.compatibility_hash = shown
                    connector: Any = self
                    observer.compatibility_factors = compatibility.own_factors(connector._vllm_config, shown)
        return host.set_xfer_handshake_metadata_pp_aware(metadata)


class WorkerSideMixin(ABC):  # noqa: B024  (see above)
    """Over a connector in a worker that has a report to send."""

    _penstock_worker: NixlObserver | None = None

    def build_connector_worker_meta(self) -> Any:
        """Send our report with the connector's own metadata in it."""
        host: Any = super()
        metadata = host.build_connector_worker_meta()
        observer = self._penstock_worker
        with _GUARD:
            if observer is not None:
                return observer.report(metadata)
        return metadata


class KvConnectorHook:
    """Wraps ``KVConnectorFactory.create_connector``."""

    name = "kv_connector"
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self._patch = Patch()
        self._swaps = Swaps()
        self._nixl = NixlWorkers()
        self._workers = KvWorkers()

    def requires(self) -> Iterable[Need]:
        """Return the factory's method and what the mixins extend."""
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

        return [
            Requirement(KVConnectorFactory, "create_connector", ("config", "role")),
            Requirement(KVConnectorBase_V1, "get_num_new_matched_tokens", ("request", "num_computed_tokens")),
            Requirement(
                KVConnectorBase_V1, "update_state_after_alloc", ("request", "blocks", "num_external_tokens")
            ),
            Requirement(KVConnectorBase_V1, "request_finished", ("request",)),
            Requirement(KVConnectorBase_V1, "build_connector_meta", ("scheduler_output",)),
            Requirement(KVConnectorBase_V1, "update_connector_output", ("connector_output",)),
            Requirement(KVConnectorBase_V1, "build_connector_worker_meta"),
            Requirement(KVConnectorBase_V1, "set_xfer_handshake_metadata_pp_aware", ("metadata",)),
            Extension(SchedulerSideMixin, KVConnectorBase_V1),
            Extension(WorkerSideMixin, KVConnectorBase_V1),
        ]

    def install(self) -> None:
        """Patch the factory."""
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        original = KVConnectorFactory.create_connector

        def create_connector(_cls: type, config: Any, role: Any, *args: Any, **kwargs: Any) -> Any:
            connector = original(config, role, *args, **kwargs)
            with _GUARD:
                if role.name == "WORKER":
                    self._worker_side(config, connector)
                else:
                    self._scheduler_side(connector)
            return connector

        self._patch.set(KVConnectorFactory, "create_connector", classmethod(create_connector))

    def uninstall(self) -> None:
        """Put the factory back; connectors that live get their classes back."""
        self._patch.undo()
        self._swaps.restore()

    def _scheduler_side(self, connector: Any) -> None:
        # A MultiConnector builds its children without the factory; each takes its own metadata.
        for each in _with_children(connector):
            self._swaps.swap(each, SchedulerSideMixin)
            if not _children(each):
                each._penstock_step = KvStepLoads(each)

    def _worker_side(self, config: Any, connector: Any) -> None:
        for each in _with_children(connector):
            observer = self._nixl.instrument(each)
            if observer is not None:
                self._swaps.swap(each, WorkerSideMixin)
                each._penstock_worker = observer
            elif not _children(each):
                self._workers.instrument(config, each)
        engine_identity.identify_worker(config)
        runtime.start()


def _with_children(connector: Any) -> Iterable[Any]:
    yield connector
    for child in _children(connector):
        yield from _with_children(child)


def _children(connector: Any) -> Sequence[Any]:
    return getattr(connector, "sub_connectors", None) or ()
