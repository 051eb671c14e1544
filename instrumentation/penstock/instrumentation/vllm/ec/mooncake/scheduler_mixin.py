"""The mixin over an ``ECMooncakeScheduler``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.ec.mooncake.names import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.instrumentation.vllm.ec.mooncake.loads import MooncakeLoads

_GUARD = guard("ec_mooncake")


class MooncakeSchedulerMixin:
    """On the scheduler's thread."""

    _penstock_loads: MooncakeLoads | None = None

    # Set by vLLM's ECMooncakeScheduler: the items that it takes to be in vLLM's encoder cache, so that it awaits no push of them.
    _local_cache: set[str]

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Await no push of what the request encodes here: for the length of the call the connector takes it as there."""
        upstream: Any = super()
        loads = self._penstock_loads
        hidden: Collection[str] = ()
        if loads is not None:
            with _GUARD:
                hidden = loads.without(request.request_id).keys() - self._local_cache
        self._local_cache.update(hidden)
        try:
            return bool(upstream.ensure_cache_available(request, num_computed_tokens))
        finally:
            self._local_cache.difference_update(hidden)

    def _accept_ready_event(self, data: dict[str, Any]) -> None:
        """Record from whom an item has come, and since when it was expected."""
        upstream: Any = super()
        upstream._accept_ready_event(data)
        loads = self._penstock_loads
        if loads is not None:
            with _GUARD:
                loads.on_arrived(data)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Name the requests of the items that this step loads to the workers."""
        upstream: Any = super()
        metadata = upstream.build_connector_meta(scheduler_output)
        loads = self._penstock_loads
        if loads is not None and metadata.loads:
            with _GUARD:
                setattr(metadata, REQUESTS, loads.on_dispatched(metadata.loads))
        return metadata

    def update_connector_output(self, connector_output: Any) -> None:
        """Record the items that the workers have loaded."""
        upstream: Any = super()
        upstream.update_connector_output(connector_output)
        loads = self._penstock_loads
        if loads is not None:
            with _GUARD:
                loads.on_loaded(getattr(connector_output.ec_connector_worker_meta, "loaded", ()))
