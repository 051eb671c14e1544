"""Instruments connectors in workers through vLLM's base interface. NIXL workers have a hook of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import AnyOf, Extension, Requirement, Swaps, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import connector_differences
from penstock.instrumentation.vllm.kv.base import connector_adapters
from penstock.instrumentation.vllm.kv.base.lmcache import LMCacheNotes, uses_server
from penstock.instrumentation.vllm.kv.base.mooncake import MooncakeWorkers
from penstock.instrumentation.vllm.kv.base.observer import KvObserver
from penstock.instrumentation.vllm.kv.base.worker_mixin import KvWorkerMixin
from penstock.instrumentation.vllm.messages import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need
    from penstock.instrumentation.vllm.kv.base.observer import WorkerNotes


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

    def instrument(self, config: Any, connector: Any, name: str) -> None:
        """Put the mixin over *connector*, which has no child connectors; *name* is what it is called in what is reported."""
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
        notes: WorkerNotes | None = (
            LMCacheNotes(connector, rank)
            if uses_server(connector)
            else self._mooncake.instrument(connector, name, rank)
        )
        observer = KvObserver(
            name,
            rank,
            place=place,
            jobs=adapter,
            notes=notes,
        )
        for mixin in (*connector_differences(type(connector)), KvWorkerMixin):
            self._hook.swaps.swap(connector, mixin)
        connector._penstock_observer = observer
