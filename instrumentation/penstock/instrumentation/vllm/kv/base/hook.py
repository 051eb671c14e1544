"""Instruments connectors in workers through vLLM's base interface; records why loads of vLLM's MooncakeConnector fail.

NIXL workers have a hook of their own. Imports neither Mooncake nor its connector: its hook instruments workers that vLLM has built.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import AnyOf, Extension, Requirement, Swaps, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import connector_differences
from penstock.instrumentation.vllm.kv.base import connector_adapters
from penstock.instrumentation.vllm.kv.base.connector_adapters import classify_mooncake_failure
from penstock.instrumentation.vllm.kv.base.observer import KvObserver
from penstock.instrumentation.vllm.kv.base.worker_mixin import KvWorkerMixin
from penstock.instrumentation.vllm.messages import LoadFailureReasons, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need

_GUARD = guard("mooncake")
_FAILED = "_handle_failed_recv"


class MooncakeWorkerMixin:
    """Mixin over a ``MooncakeConnectorWorker``; runs on the thread of its event loop."""

    _penstock_reasons: LoadFailureReasons | None = None

    def _handle_failed_recv(self, pull_metas: Any, req_ids: Any, reason: str) -> Any:
        """Record the reason, which vLLM only logs."""
        upstream: Any = super()
        reasons = self._penstock_reasons
        if reasons is not None and runtime.active:
            with _GUARD:
                failure = classify_mooncake_failure(reason, sys.exc_info()[1])
                for each in req_ids:
                    meta = pull_metas.get(each)
                    if meta is not None and not meta.failed:
                        reasons.note(meta.d_req_id, failure)
        return upstream._handle_failed_recv(pull_metas, req_ids, reason)


class MooncakeHook:
    """Requires what the mixin extends in the worker's class; it patches worker objects only."""

    name = "mooncake"
    component = c.COMPONENT_WORKER

    def __init__(self, worker: type) -> None:
        """Check *worker*, the class of a Mooncake worker."""
        self._worker = worker
        self.swaps = Swaps()

    def requires(self) -> Iterable[Need]:
        """Return the method that the mixin extends."""
        return [
            Requirement(self._worker, _FAILED, ("pull_metas", "req_ids", "reason")),
            Extension(MooncakeWorkerMixin, self._worker),
        ]

    def install(self) -> None:
        """Do nothing: :class:`MooncakeWorkers` instruments each worker."""

    def uninstall(self) -> None:
        """Restore the class of live workers."""
        self.swaps.restore()


class MooncakeWorkers:
    """Instruments every Mooncake worker of the process, if the hook's requirements are met."""

    def __init__(self) -> None:
        self._hook: MooncakeHook | None = None

    def instrument(self, connector: Any, rank: int) -> LoadFailureReasons | None:
        """Put the mixin over the worker of *connector*; return None if it has none or the requirements are not met."""
        worker: Any = getattr(connector, "connector_worker", None)
        if not hasattr(worker, _FAILED):
            return None
        self._hook = self._hook or MooncakeHook(type(worker))
        settings = runtime.settings
        if not registry.install(self._hook, settings.hooks_disabled if settings is not None else ()):
            return None
        self._hook.swaps.swap(worker, MooncakeWorkerMixin)
        worker._penstock_reasons = LoadFailureReasons(rank)
        reasons: LoadFailureReasons = worker._penstock_reasons
        return reasons


class KvWorkerHook:
    """Requires what the mixin extends in the base class; it patches connector objects only."""

    name = "kv_worker"
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self.swaps = Swaps()

    def requires(self) -> Iterable[Need]:
        """Return the methods that the mixin extends."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

        return [
            Requirement(KVConnectorBase_V1, "start_load_kv", ("forward_context",)),
            Requirement(KVConnectorBase_V1, "wait_for_layer_load", ("layer_name",)),
            Requirement(KVConnectorBase_V1, "save_kv_layer", ("layer_name",)),
            Requirement(KVConnectorBase_V1, "wait_for_save"),
            AnyOf(
                (
                    Requirement(KVConnectorBase_V1, "get_transfer_results", ("finished_req_ids",)),
                    Requirement(KVConnectorBase_V1, "get_finished", ("finished_req_ids",)),
                )
            ),
            Requirement(KVConnectorBase_V1, "get_block_ids_with_load_errors"),
            Requirement(KVConnectorBase_V1, "build_connector_worker_meta"),
            *(
                Extension(mixin, KVConnectorBase_V1)
                for mixin in (KvWorkerMixin, *connector_differences(KVConnectorBase_V1))
            ),
        ]

    def install(self) -> None:
        """Do nothing: :class:`KvWorkers` instruments each connector."""

    def uninstall(self) -> None:
        """Restore the classes of live connectors."""
        self.swaps.restore()


class KvWorkers:
    """Instruments the worker-side connectors of this process, if the hook's requirements are met."""

    def __init__(self) -> None:
        self._hook: KvWorkerHook | None = None
        self._mooncake = MooncakeWorkers()

    def instrument(self, config: Any, connector: Any) -> None:
        """Put the mixin over *connector*, which has no child connectors."""
        self._hook = self._hook or KvWorkerHook()
        settings = runtime.settings
        if not registry.install(self._hook, settings.hooks_disabled if settings is not None else ()):
            return
        adapter_class = connector_adapters.adapter_for(connector_adapters.JOB_ADAPTERS, connector)
        adapter = adapter_class() if adapter_class is not None else None
        place = place_of([getattr(connector, "_cache_hit_source", None)])
        if adapter is not None:
            place = place or adapter.place
        rank = config.parallel_config.rank
        observer = KvObserver(
            type(connector).__name__,
            rank,
            place=place,
            jobs=adapter,
            reasons=self._mooncake.instrument(connector, rank),
        )
        for mixin in (*connector_differences(type(connector)), KvWorkerMixin):
            self._hook.swaps.swap(connector, mixin)
        connector._penstock_observer = observer
