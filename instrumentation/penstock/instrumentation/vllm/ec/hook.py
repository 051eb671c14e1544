"""The EC connector factory's hook: what it builds keeps its class's name and gains a mixin, in the scheduler and in the workers."""

from __future__ import annotations

import time
from abc import ABC
from typing import TYPE_CHECKING, Any, Protocol

from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Extension, Part, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import ask_for_reports, encoder_differences
from penstock.instrumentation.vllm.connector_factory import ConnectorFactoryHook
from penstock.instrumentation.vllm.ec.protocol import ExternalItem
from penstock.instrumentation.vllm.ec.step_loads import ask_connector
from penstock.instrumentation.vllm.messages import EcReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.instrumentation.hooks import Need
    from penstock.instrumentation.vllm.ec.load_controller import EcLoadController
    from penstock.instrumentation.vllm.ec.request_loads import EcAdapter, RequestLoads
    from penstock.instrumentation.vllm.ec.worker import EcWorker

_WORKER_GUARD = guard("ec_worker")
_GUARD = guard("ec_connector")


class EcWorkerSideMixin(ABC):
    """Over a connector in a worker."""

    _penstock_worker: EcWorker | None = None

    # Set by vLLM's ECConnectorBase.
    _connector_metadata: Any

    def start_load_caches(self, encoder_cache: Any, **kwargs: Any) -> None:
        """Load; in a guarded step without raising."""
        upstream: Any = super()
        worker, metadata = self._penstock_worker, self._connector_metadata

        def load() -> None:
            upstream.start_load_caches(encoder_cache, **kwargs)

        items = tuple(ExternalItem(*each) for each in getattr(metadata, "penstock_items", ()))
        if worker is None:
            load()
            return
        with _WORKER_GUARD:
            worker.before_load(metadata)
        worker.calls.begin("start_load_caches")
        try:
            if not items:
                load()
            elif getattr(metadata, "penstock_guarded", False):
                worker.guarded(items, encoder_cache, load)
            else:
                worker.watched(items, encoder_cache, load)
        finally:
            worker.calls.end()

    def start_save_caches(self, **kwargs: Any) -> None:
        """Keep placeholders from being published."""
        upstream: Any = super()
        worker = self._penstock_worker
        if worker is not None and "encoder_cache" in kwargs:
            with _WORKER_GUARD:
                kwargs["encoder_cache"] = worker.without_placeholders(kwargs["encoder_cache"])
        upstream.start_save_caches(**kwargs)

    def save_caches(self, encoder_cache: Any, mm_hash: str, **kwargs: Any) -> None:
        """Report what is saved; vLLM calls this for each item that it encodes."""
        upstream: Any = super()
        worker, start_ns = self._penstock_worker, time.time_ns()
        if worker is None:
            upstream.save_caches(encoder_cache, mm_hash, **kwargs)
            return
        with _WORKER_GUARD:
            worker.on_encoded(mm_hash, encoder_cache[mm_hash])
        error: Exception | None = None
        worker.calls.begin("save_caches")
        try:
            upstream.save_caches(encoder_cache, mm_hash, **kwargs)
        except Exception as raised:
            error = raised
            raise
        finally:
            worker.calls.end()
            with _WORKER_GUARD:
                worker.on_saved(mm_hash, encoder_cache[mm_hash], start_ns, error)

    def build_connector_worker_meta(self) -> Any:
        """Send our report with the connector's own metadata in it."""
        upstream: Any = super()
        metadata = upstream.build_connector_worker_meta()
        worker = self._penstock_worker
        return metadata if worker is None else worker.report(metadata)


class EcSession(Protocol):
    """What the mixin uses of the scheduler's session."""

    @property
    def ec(self) -> EcLoadController | None:
        """The scheduler's encoder outputs."""


class EcSchedulerSideMixin(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over a connector in the scheduler, whose session sets itself on it."""

    _penstock: EcSession | None = None
    # Beside a connector of vLLM's that moves items ahead of scheduling.
    _penstock_loads: RequestLoads | None = None

    @property
    def _penstock_ec(self) -> EcLoadController | None:
        session = self._penstock
        return session.ec if session is not None else None

    def has_cache_item(self, identifier: str) -> bool:
        """Keep items that are bad from being loaded."""
        upstream: Any = super()
        answer = ask_connector(upstream.has_cache_item, identifier)
        control = self._penstock_ec
        if control is not None:
            with _GUARD:
                return control.on_answer(identifier, answer)
        return answer.found

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Keep requests from peers that are cut off; record those that wait; end the wait for items that are given up."""
        upstream: Any = super()
        # A poll: every step asks about every request with encoder inputs.
        session = self._penstock
        control = session.ec if session is not None else None
        if control is not None and control.peers.in_use and runtime.active:
            with _GUARD:
                if not control.admits(request, num_computed_tokens):
                    return False
        ready: bool = upstream.ensure_cache_available(request, num_computed_tokens)
        if control is not None:
            with _GUARD:
                return control.is_available(request, num_computed_tokens, ready)
        return ready

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Record what is loaded in this step; the connector may ask itself again whether it has the item."""
        upstream: Any = super()
        control = self._penstock_ec
        if control is not None:
            with _GUARD:
                control.on_allocated(request, index)
        upstream.update_state_after_alloc(request, index)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Put what the workers have to know on the metadata of the step."""
        upstream: Any = super()
        metadata = upstream.build_connector_meta(scheduler_output)
        control = self._penstock_ec
        if control is not None:
            with _GUARD:
                control.attach(metadata, tokens=scheduler_output.total_num_scheduled_tokens)
        return metadata

    def take_unavailable_requests(self) -> set[str]:
        """Record the requests that the connector fails; keep those that a policy lets encode their items here."""
        upstream: Any = super()
        found: set[str] = upstream.take_unavailable_requests()
        control = self._penstock_ec
        if control is not None and found:
            with _GUARD:
                return control.on_unavailable(found)
        return found

    def update_connector_output(self, connector_output: Any) -> Any:
        """Give the connector its own worker metadata, without our report around it."""
        upstream: Any = super()
        metadata = getattr(connector_output, "ec_connector_worker_meta", None)
        if isinstance(metadata, EcReport):
            connector_output.ec_connector_worker_meta = metadata.inner
        return upstream.update_connector_output(connector_output)


class EcConnectorHook(ConnectorFactoryHook):
    """Wraps ``ECConnectorFactory.create_connector``."""

    name = "ec_connector"

    def __init__(self, adapters: Sequence[EcAdapter] = ()) -> None:
        """Know more of the connectors that *adapters* are for."""
        super().__init__()
        self._adapters = adapters

    def factory(self) -> Any:
        """Return ``ECConnectorFactory``."""
        from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

        return ECConnectorFactory

    def requires(self) -> Iterable[Need | Part]:
        """Return the factory's method and what the mixins extend."""
        from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase

        return [
            Requirement(self.factory(), "create_connector", ("config", "role")),
            Requirement(ECConnectorBase, "has_cache_item", ("identifier",)),
            Requirement(ECConnectorBase, "ensure_cache_available", ("request", "num_computed_tokens")),
            Requirement(ECConnectorBase, "update_state_after_alloc", ("request", "index")),
            Requirement(ECConnectorBase, "build_connector_meta", ("scheduler_output",)),
            Requirement(ECConnectorBase, "update_connector_output", ("connector_output",)),
            Requirement(ECConnectorBase, "start_load_caches", ("encoder_cache",)),
            Requirement(ECConnectorBase, "save_caches", ("encoder_cache", "mm_hash")),
            Extension(EcSchedulerSideMixin, ECConnectorBase),
            *(
                Extension(mixin, ECConnectorBase)
                for mixin in (EcWorkerSideMixin, *encoder_differences(ECConnectorBase))
            ),
            Part(
                "given_up_items",
                "requests that the connector itself fails, since it cannot get an item of theirs",
                (Requirement(ECConnectorBase, "take_unavailable_requests"),),
            ),
        ]

    def install(self) -> None:
        """Patch the factory; where needed, have the model runner ask for reports."""
        super().install()
        ask_for_reports(self.patch, _GUARD)

    def on_scheduler_side(self, connector: Any) -> None:
        """Put the mixin over the connector; the scheduler's session sets itself on it later."""
        self.swaps.swap(connector, EcSchedulerSideMixin)
        adapter = self._adapter_of(connector)
        if adapter is not None:
            connector._penstock_loads = adapter.on_scheduler_side(connector)

    def on_worker_side(self, config: Any, connector: Any) -> None:
        """Put the mixin and its state on the connector."""
        # Needs torch, which the API process has no use for.
        from penstock.instrumentation.vllm.ec.worker import EcWorker

        worker = EcWorker(config, connector)
        for mixin in (*encoder_differences(type(connector)), EcWorkerSideMixin):
            self.swaps.swap(connector, mixin)
        connector._penstock_worker = worker
        adapter = self._adapter_of(connector)
        if adapter is not None:
            adapter.on_worker_side(config, connector, worker)

    def _adapter_of(self, connector: Any) -> EcAdapter | None:
        return next((each for each in self._adapters if each.matches(connector)), None)
