"""The KV connector factory's hook: what it builds keeps its class's name and gains a mixin.

On the scheduler's side the mixin reports look-ups and loads, on the worker's side what becomes of them (``kv/base``). NIXL's worker
is instrumented more deeply (``kv/nixl``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.hooks import Extension, Part, Requirement
from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.connector_factory import ConnectorFactoryHook
from penstock.instrumentation.vllm.kv.base import KvStepLoads, KvWorkers, LMCacheLookups, uses_server
from penstock.instrumentation.vllm.kv.nixl import NixlWorkers
from penstock.instrumentation.vllm.kv.scheduler_mixin import SchedulerSideMixin, WorkerSideMixin
from penstock.instrumentation.vllm.kv.tiering import P2pTiers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need


class KvConnectorHook(ConnectorFactoryHook):
    """Wraps ``KVConnectorFactory.create_connector``."""

    name = "kv_connector"

    def __init__(self) -> None:
        super().__init__()
        self._nixl = NixlWorkers()
        self._workers = KvWorkers()
        self._tiers = P2pTiers()

    def factory(self) -> Any:
        """Return ``KVConnectorFactory``."""
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        return KVConnectorFactory

    def requires(self) -> Iterable[Need | Part]:
        """Return the factory's method and what the mixins extend."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

        return [
            Requirement(self.factory(), "create_connector", ("config", "role")),
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
            Part(
                "load_source",
                "whether an offloaded block comes from this machine's memory or its disk",
                (Requirement(KVConnectorBase_V1, "get_external_cache_hit_sources", ("request",)),),
            ),
        ]

    def on_scheduler_side(self, connector: Any) -> None:
        """Put the mixin over the connector and its children."""
        # A MultiConnector builds its children without the factory; each takes its own metadata.
        names = _names(connector)
        for each in _with_children(connector):
            self.swaps.swap(each, SchedulerSideMixin)
            if not child_connectors(each):
                each._penstock_step = KvStepLoads(each)
                if uses_server(each):
                    each._penstock_lookups = LMCacheLookups(each, names[id(each)])
                each._penstock_tiers = self._tiers.instrument(each)
                each._penstock_step.observes_tier = bool(each._penstock_tiers)

    def on_worker_side(self, config: Any, connector: Any) -> None:
        """Put an observer on the connector and its children."""
        names = _names(connector)
        for each in _with_children(connector):
            observer = self._nixl.instrument(each)
            if observer is not None:
                self.swaps.swap(each, WorkerSideMixin)
                each._penstock_worker = observer
            elif not child_connectors(each):
                self._workers.instrument(config, each, names[id(each)])


def _with_children(connector: Any) -> Iterable[Any]:
    yield connector
    for child in child_connectors(connector):
        yield from _with_children(child)


def _names(connector: Any) -> dict[int, str]:
    """Return the name of each connector that moves something, by its ``id``: its class's, with a number if it has several.

    vLLM adds the statistics of a ``MultiConnector``'s children of one class up, by the name of the class; it stays theirs.
    """
    movers = [each for each in _with_children(connector) if not child_connectors(each)]
    classes = Counter(type(each).__name__ for each in movers)
    numbers: Counter[str] = Counter()
    names = {}
    for each in movers:
        name = type(each).__name__
        names[id(each)] = name if classes[name] == 1 else f"{name}.{numbers[name]}"
        numbers[name] += 1
    return names
