"""The mixin over a connector in a worker, through vLLM's base interface."""

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

# Called for each layer; timed only in steps that wait for a load or a save.
_WAIT: Final = "wait_for_layer_load"
_SAVE: Final = "save_kv_layer"


class KvWorkerMixin(ABC):  # noqa: B024  (like the connectors' own base: the layouts must agree for a swap)
    """Over a connector in a worker. Methods called for each layer are wrapped only in steps that load or save."""

    _penstock_observer: KvObserver | None = None
    _penstock_busy: bool = False
    _penstock_waits: bool = False
    _penstock_saves: bool = False

    def bind_connector_metadata(self, connector_metadata: Any) -> Any:
        """Record the loads and saves of this step."""
        upstream: Any = super()
        result = upstream.bind_connector_metadata(connector_metadata)
        observer = self._penstock_observer
        if observer is not None:
            observer.calls.steps += 1
        if self._penstock_busy:
            self._penstock_unwrap()
        if observer is not None and runtime.active and observer.has_work(connector_metadata):
            with _GUARD:
                self._penstock_busy = True
                self._penstock_waits, self._penstock_saves = observer.on_metadata_bound(connector_metadata)
                if self._penstock_waits:
                    self._penstock_wrap(_WAIT, c.DIRECTION_RECEIVE)
                if self._penstock_saves:
                    self._penstock_wrap(_SAVE, c.DIRECTION_SEND)
        return result

    def _penstock_wrap(self, name: str, direction: int) -> None:
        """Shadow a method of the class with a timed one until the step ends."""
        method = getattr(self, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self._penstock_call_timed(direction, method, *args, **kwargs)

        self.__dict__[name] = timed

    def _penstock_unwrap(self) -> None:
        """Remove the timed methods."""
        self._penstock_busy = self._penstock_waits = self._penstock_saves = False
        self.__dict__.pop(_WAIT, None)
        self.__dict__.pop(_SAVE, None)

    def _penstock_call_timed(self, direction: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the connector's *method*; record its duration, or report its exception."""
        wall, start = time.time_ns(), time.perf_counter_ns()
        result = self._penstock_call(direction, method, *args, **kwargs)
        observer = self._penstock_observer
        if observer is not None:
            with _GUARD:
                duration = time.perf_counter_ns() - start
                if direction == c.DIRECTION_RECEIVE:
                    observer.add_load_wait(duration)
                else:
                    observer.add_save_time(wall, duration)
        return result

    def _penstock_call(self, direction: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the connector's *method* as the call that has not returned; report its exception."""
        observer = self._penstock_observer
        if observer is not None:
            observer.calls.begin(getattr(method, "__name__", ""))
        try:
            return method(*args, **kwargs)
        except Exception as error:
            self._penstock_on_exception(error, direction)
            raise
        finally:
            if observer is not None:
                observer.calls.end()

    def _penstock_on_exception(self, error: Exception, direction: int) -> None:
        observer = self._penstock_observer
        if observer is not None and runtime.active:
            with _GUARD:
                observer.on_exception(error, direction)

    def start_load_kv(self, *args: Any, **kwargs: Any) -> Any:
        """Record the start of the loads; time the call if the step waits for them."""
        upstream: Any = super()
        observer = self._penstock_observer
        if self._penstock_busy and observer is not None:
            with _GUARD:
                observer.on_loads_started()
        if self._penstock_waits:
            return self._penstock_call_timed(c.DIRECTION_RECEIVE, upstream.start_load_kv, *args, **kwargs)
        return self._penstock_call(c.DIRECTION_RECEIVE, upstream.start_load_kv, *args, **kwargs)

    def wait_for_save(self) -> Any:
        """Record that the saves of this step are finished."""
        upstream: Any = super()
        if not self._penstock_saves:
            return self._penstock_call(c.DIRECTION_SEND, upstream.wait_for_save)
        result = self._penstock_call_timed(c.DIRECTION_SEND, upstream.wait_for_save)
        observer = self._penstock_observer
        if observer is not None:
            with _GUARD:
                observer.on_saves_finished()
        return result

    def get_transfer_results(self, *args: Any, **kwargs: Any) -> Any:
        """Record the finished loads and sends."""
        upstream: Any = super()
        results = self._penstock_call(c.DIRECTION_RECEIVE, upstream.get_transfer_results, *args, **kwargs)
        observer = self._penstock_observer
        ended = results.finished_recving or results.finished_sending
        if (self._penstock_busy or ended) and observer is not None:
            with _GUARD:
                if runtime.active:
                    observer.on_transfer_results(results)
                else:
                    observer.forget(results.finished_recving)
        return results

    def get_block_ids_with_load_errors(self) -> Any:
        """Record the blocks that were not loaded."""
        upstream: Any = super()
        blocks = upstream.get_block_ids_with_load_errors()
        observer = self._penstock_observer
        if blocks and observer is not None and runtime.active:
            with _GUARD:
                observer.on_load_errors(blocks)
        return blocks

    def build_connector_worker_meta(self) -> Any:
        """Return Penstock's report, which wraps the connector's own metadata."""
        upstream: Any = super()
        metadata = upstream.build_connector_worker_meta()
        observer = self._penstock_observer
        if observer is not None and (metadata is not None or observer.has_news):
            with _GUARD:
                return observer.report(metadata)
        return metadata

    def clear_connector_metadata(self) -> Any:
        """End the step."""
        upstream: Any = super()
        if self._penstock_busy:
            self._penstock_unwrap()
        return upstream.clear_connector_metadata()
