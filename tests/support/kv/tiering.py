"""vLLM's tiers of offloaded KV where there is no accelerator: its spec, region and managers, and a worker that copies on the CPU.

``TieringOffloadingSpec`` refuses any platform but CUDA and XPU in its worker only. Everything behind the GPU is vLLM's own: the
region in shared memory, the primary tier, and the P2P tier with its ZMQ control channel and NIXL agent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

if TYPE_CHECKING:
    from collections.abc import Iterable


class TieringOnCpuSpec(TieringOffloadingSpec):
    """As vLLM's, with blocks copied by :class:`RegionWorker`."""

    def get_worker(self, kv_caches: Any) -> RegionWorker:
        """Return the worker's side."""
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return RegionWorker(kv_caches, region)


class RegionWorker(OffloadingWorker):
    """Copies between the KV cache and the region at once and says so in the next step, as a copy engine does that is done by then."""

    def __init__(self, kv_caches: Any, region: SharedOffloadRegion) -> None:
        self._layers = [each.tensor for each in kv_caches.tensors]
        self._region = region
        self._chunks = [region.create_next_worker_view(layer.shape[1]) for layer in self._layers]
        self._page = sum(layer.shape[1] for layer in self._layers)
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks to their chunks."""
        start = time.perf_counter()
        for block, chunk in _pairs(src_spec.block_ids, dst_spec.chunk_ids):
            for layer, chunks in zip(self._layers, self._chunks, strict=True):
                chunks[chunk].copy_(layer[block])
        return self._end(job_id, len(src_spec.block_ids), start)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy chunks to their blocks."""
        start = time.perf_counter()
        for chunk, block in _pairs(src_spec.chunk_ids, dst_spec.block_ids):
            for layer, chunks in zip(self._layers, self._chunks, strict=True):
                layer[block].copy_(chunks[chunk])
        return self._end(job_id, len(dst_spec.block_ids), start)

    def get_finished(self) -> list[TransferResult]:
        """Return what has ended since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: what was submitted is copied."""

    def shutdown(self) -> None:
        """Release the region."""
        self._chunks.clear()
        self._region.cleanup()

    def _end(self, job_id: int, blocks: int, start: float) -> bool:
        self._done.append(TransferResult(job_id, True, blocks * self._page, time.perf_counter() - start))
        return True


def _pairs(left: Any, right: Any) -> Iterable[tuple[int, int]]:
    return zip(map(int, left), map(int, right), strict=True)
