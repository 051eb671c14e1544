"""What Penstock adds to a connector in a worker that is only known by its base interface."""

from __future__ import annotations

import time
from abc import ABC
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.base.observer import KvObserver

_GUARD = guard("kv_worker")

# What vLLM calls for each layer; timed only in steps that wait for a load or a save.
_WAIT: Final = "wait_for_layer_load"
_SAVE: Final = "save_kv_layer"


class KvWorkerMixin(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over a connector in a worker. What vLLM calls for each layer is left alone in steps that wait for nothing."""

    _penstock_observer: KvObserver | None = None
    _penstock_busy: bool = False
    _penstock_waits: bool = False
    _penstock_saves: bool = False

    def bind_connector_metadata(self, connector_metadata: Any) -> Any:
        """Note what this step loads and saves."""
        host: Any = super()
        result = host.bind_connector_metadata(connector_metadata)
        observer = self._penstock_observer
        if self._penstock_busy:
            self._penstock_rest()
        if observer is not None and runtime.active and observer.concerns(connector_metadata):
            with _GUARD:
                self._penstock_busy = True
                self._penstock_waits, self._penstock_saves = observer.bound(connector_metadata)
                if self._penstock_waits:
                    self._penstock_time(_WAIT, c.DIRECTION_RECEIVE)
                if self._penstock_saves:
                    self._penstock_time(_SAVE, c.DIRECTION_SEND)
        return result

    def _penstock_time(self, name: str, direction: int) -> None:
        """Time a method of this object until the step ends, in front of the class's own."""
        method = getattr(self, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self._penstock_timed(direction, method, *args, **kwargs)

        self.__dict__[name] = timed

    def _penstock_rest(self) -> None:
        """Leave the layers' methods alone again."""
        self._penstock_busy = self._penstock_waits = self._penstock_saves = False
        self.__dict__.pop(_WAIT, None)
        self.__dict__.pop(_SAVE, None)

    def _penstock_timed(self, direction: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the connector's own *method* and tell how long the step waited for it, or what it raised."""
        wall, start = time.time_ns(), time.perf_counter_ns()
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            self._penstock_raised(error, direction)
            raise
        observer = self._penstock_observer
        if observer is not None:
            with _GUARD:
                duration = time.perf_counter_ns() - start
                if direction == c.DIRECTION_RECEIVE:
                    observer.waited(duration)
                else:
                    observer.saved(wall, duration)
        return result

    def _penstock_raised(self, error: Exception, direction: int) -> None:
        observer = self._penstock_observer
        if observer is not None and runtime.active:
            with _GUARD:
                observer.raised(error, direction)

    def start_load_kv(self, *args: Any, **kwargs: Any) -> Any:
        """Note what begins; time what the step waits for."""
        host: Any = super()
        observer = self._penstock_observer
        if self._penstock_busy and observer is not None:
            with _GUARD:
                observer.starts()
        if self._penstock_waits:
            return self._penstock_timed(c.DIRECTION_RECEIVE, host.start_load_kv, *args, **kwargs)
        try:
            return host.start_load_kv(*args, **kwargs)
        except Exception as error:
            self._penstock_raised(error, c.DIRECTION_RECEIVE)
            raise

    def wait_for_save(self) -> Any:
        """Note that the saves of this step are done."""
        host: Any = super()
        if not self._penstock_saves:
            try:
                return host.wait_for_save()
            except Exception as error:
                self._penstock_raised(error, c.DIRECTION_SEND)
                raise
        result = self._penstock_timed(c.DIRECTION_SEND, host.wait_for_save)
        observer = self._penstock_observer
        if observer is not None:
            with _GUARD:
                observer.save_ended()
        return result

    def get_transfer_results(self, *args: Any, **kwargs: Any) -> Any:
        """Note which loads and sends have ended."""
        host: Any = super()
        try:
            results = host.get_transfer_results(*args, **kwargs)
        except Exception as error:
            self._penstock_raised(error, c.DIRECTION_RECEIVE)
            raise
        observer = self._penstock_observer
        ended = results.finished_recving or results.finished_sending
        if (self._penstock_busy or ended) and observer is not None and runtime.active:
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
        if observer is not None and (metadata is not None or observer.has_news):
            with _GUARD:
                return observer.report(metadata)
        return metadata

    def clear_connector_metadata(self) -> Any:
        """End the step."""
        host: Any = super()
        if self._penstock_busy:
            self._penstock_rest()
        return host.clear_connector_metadata()
