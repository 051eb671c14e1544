"""What Penstock adds to a connector in a worker that is only known by its base interface."""

from __future__ import annotations

import time
from abc import ABC
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.guard import guard
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv_observer import KvObserver

_GUARD = guard("kv_worker")


class KvWorkerMixin(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over a connector in a worker. What vLLM calls for each layer is left alone but in steps that wait for a load."""

    _penstock_observer: KvObserver | None = None

    # Set by vLLM's KVConnectorBase_V1.
    _connector_metadata: Any = None

    def start_load_kv(self, *args: Any, **kwargs: Any) -> Any:
        """Note what begins; time what the step waits for."""
        host: Any = super()
        observer, timed = self._penstock_observer, False
        if observer is not None and runtime.active:
            with _GUARD:
                timed = observer.starts(self._connector_metadata)
        start = time.perf_counter_ns() if timed else 0
        try:
            result = host.start_load_kv(*args, **kwargs)
        except Exception as error:
            self._penstock_raised(error)
            raise
        if timed and observer is not None:
            with _GUARD:
                observer.waited(time.perf_counter_ns() - start)
                self._penstock_time_layers(observer)
        return result

    def _penstock_time_layers(self, observer: KvObserver) -> None:
        """Time the waits for single layers, until the end of this step."""
        wait = self.wait_for_layer_load  # type: ignore[attr-defined]

        def wait_for_layer_load(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return wait(*args, **kwargs)
            except Exception as error:
                self._penstock_raised(error)
                raise
            finally:
                observer.waited(time.perf_counter_ns() - start)

        self.__dict__["wait_for_layer_load"] = wait_for_layer_load

    def _penstock_raised(self, error: Exception) -> None:
        observer = self._penstock_observer
        if observer is not None and runtime.active:
            with _GUARD:
                observer.raised(error)

    def get_transfer_results(self, *args: Any, **kwargs: Any) -> Any:
        """Note which loads and sends have ended."""
        host: Any = super()
        self.__dict__.pop("wait_for_layer_load", None)
        results = host.get_transfer_results(*args, **kwargs)
        observer = self._penstock_observer
        if observer is not None and runtime.active:
            with _GUARD:
                observer.finished(results)
        return results

    def get_block_ids_with_load_errors(self) -> Any:
        """Note which blocks were not loaded."""
        host: Any = super()
        blocks = host.get_block_ids_with_load_errors()
        observer = self._penstock_observer
        if blocks and observer is not None and runtime.active:
            with _GUARD:
                observer.broken(blocks)
        return blocks

    def build_connector_worker_meta(self) -> Any:
        """Send our report with the connector's own metadata in it."""
        host: Any = super()
        metadata = host.build_connector_worker_meta()
        observer = self._penstock_observer
        with _GUARD:
            if observer is not None:
                return observer.report(metadata)
        return metadata
