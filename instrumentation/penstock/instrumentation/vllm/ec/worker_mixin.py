"""The mixin over an EC connector in a worker."""

from __future__ import annotations

import time
from abc import ABC
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.ec.protocol import ExternalItem

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.ec.worker import EcWorker

_GUARD = guard("ec_worker")


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
        with _GUARD:
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
            with _GUARD:
                kwargs["encoder_cache"] = worker.without_placeholders(kwargs["encoder_cache"])
        upstream.start_save_caches(**kwargs)

    def save_caches(self, encoder_cache: Any, mm_hash: str, **kwargs: Any) -> None:
        """Report what is saved; vLLM calls this for each item that it encodes."""
        upstream: Any = super()
        worker, start_ns = self._penstock_worker, time.time_ns()
        if worker is None:
            upstream.save_caches(encoder_cache, mm_hash, **kwargs)
            return
        with _GUARD:
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
            with _GUARD:
                worker.on_saved(mm_hash, encoder_cache[mm_hash], start_ns, error)

    def build_connector_worker_meta(self) -> Any:
        """Send our report with the connector's own metadata in it."""
        upstream: Any = super()
        metadata = upstream.build_connector_worker_meta()
        worker = self._penstock_worker
        return metadata if worker is None else worker.report(metadata)
