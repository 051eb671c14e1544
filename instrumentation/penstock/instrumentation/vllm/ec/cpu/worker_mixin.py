"""The mixin over an ``ECCPUWorker``; on the worker's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.ec.cpu.copies import Copies

_GUARD = guard("ec_cpu")


class CpuWorkerMixin:
    """Reports copies when the device says that they have ended, which may be steps after they were ordered."""

    _penstock_copies: Copies | None = None
    _penstock_snapshot = ""

    # Set by vLLM's ECCPUWorker.
    _region: Any
    _is_save_rank: bool

    def start_load_caches(self, encoder_cache: Any, connector_metadata: Any) -> None:
        """Record the loads of a step that vLLM could order."""
        upstream: Any = super()
        upstream.start_load_caches(encoder_cache, connector_metadata=connector_metadata)
        copies = self._penstock_copies
        if copies is not None and connector_metadata.loads:
            with _GUARD:
                items = getattr(connector_metadata, "penstock_items", ())
                copies.on_loads(connector_metadata.loads, self._region.block_size_bytes, items)

    def save_caches(self, encoder_cache: Any, mm_hash: str, connector_metadata: Any) -> None:
        """Record a save that this rank makes."""
        upstream: Any = super()
        upstream.save_caches(encoder_cache, mm_hash, connector_metadata=connector_metadata)
        copies = self._penstock_copies
        if copies is not None and self._is_save_rank and mm_hash in connector_metadata.saves:
            with _GUARD:
                copies.on_save(mm_hash, encoder_cache[mm_hash].nbytes)

    def _collect_finished(self, inflight: Any, direction: str) -> list[Any]:
        upstream: Any = super()
        before = list(inflight)
        done: list[Any] = upstream._collect_finished(inflight, direction)
        copies = self._penstock_copies
        ended = len(before) - len(inflight)
        if copies is not None and ended:
            with _GUARD:
                # vLLM records these events anew with a later copy only.
                copies.on_finished(
                    (each.completions, each.start_event.elapsed_time(each.end_event))
                    for each in before[:ended]
                )
        return done

    def shutdown(self) -> None:
        """Stop contributing to the snapshot."""
        upstream: Any = super()
        with _GUARD:
            runtime.snapshots.remove(self._penstock_snapshot)
        upstream.shutdown()
