"""A place for vLLM's OffloadingConnector to offload to where there is no accelerator: a file.

vLLM's own place (``CPUOffloadingSpec``) refuses any platform but CUDA and XPU. The connector, its scheduler and its manager are
vLLM's; only who copies the blocks is ours, by the way that vLLM has for that (``spec_name``, ``spec_module_path``).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

if TYPE_CHECKING:
    from collections.abc import Iterable


class FileSpec(CPUOffloadingSpec):
    """As vLLM's, with blocks copied by :class:`FileWorker`."""

    def get_worker(self, kv_caches: Any) -> FileWorker:
        """Return the worker's side."""
        return FileWorker(kv_caches, Path(self.extra_config["path"]), Path(self.extra_config["gate"]))


class FileWorker(OffloadingWorker):
    """Copies at once and says so in the next step, as a copy engine does that is done by then.

    Loads wait while *gate* is there. If it is a pipe, each is copied by a thread that stands still in its ``open`` first.
    """

    def __init__(self, kv_caches: Any, path: Path, gate: Path) -> None:
        self._layers = [each.tensor.numpy() for each in kv_caches.tensors]
        self._page = sum(layer.shape[1] for layer in self._layers)
        self._path, self._gate = path, gate
        path.touch()
        self._done: SimpleQueue[TransferResult] = SimpleQueue()
        self._copying: dict[int, threading.Thread] = {}
        self._kept: list[tuple[int, Any, Any]] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Write blocks to the file."""
        start = time.perf_counter()
        with self._path.open("r+b") as file:
            for block, chunk in _pairs(src_spec.block_ids, dst_spec.block_ids):
                file.seek(chunk * self._page)
                for layer in self._layers:
                    file.write(layer[block].tobytes())
        self._end(job_id, len(src_spec.block_ids), start, good=True)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Read blocks from the file, once no gate is there."""
        self._kept.append((job_id, src_spec, dst_spec))
        self._load_kept()
        return True

    def _load_kept(self) -> None:
        if self._kept and self._gate.is_fifo():
            kept, self._kept = self._kept, []
            for each in kept:
                thread = threading.Thread(target=self._load_behind_pipe, args=each, daemon=True)
                self._copying[each[0]] = thread
                thread.start()
        elif self._kept and not self._gate.exists():
            kept, self._kept = self._kept, []
            for each in kept:
                self._load(*each)

    def _load_behind_pipe(self, *load: Any) -> None:
        with self._gate.open("rb") as pipe:
            pipe.read()
        self._load(*load)

    def _load(self, job_id: int, src_spec: Any, dst_spec: Any) -> None:
        """Read blocks from the file; what is not there fails the job."""
        start, good = time.perf_counter(), True
        with self._path.open("rb") as file:
            for chunk, block in _pairs(src_spec.block_ids, dst_spec.block_ids):
                file.seek(chunk * self._page)
                for layer in self._layers:
                    page = file.read(layer.shape[1])
                    good = good and len(page) == layer.shape[1]
                    if good:
                        layer[block] = np.frombuffer(page, dtype=layer.dtype)
        self._end(job_id, len(dst_spec.block_ids), start, good=good)

    def get_finished(self) -> list[TransferResult]:
        """Return what has ended since the last call."""
        self._load_kept()
        done = [self._done.get() for _ in range(self._done.qsize())]
        for each in done:
            self._copying.pop(each.job_id, None)
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Wait for the threads that copy these; all else is copied as soon as it is submitted."""
        for job_id in job_ids & self._copying.keys():
            self._copying[job_id].join()

    def _end(self, job_id: int, blocks: int, start: float, *, good: bool) -> None:
        took = time.perf_counter() - start
        self._done.put(TransferResult(job_id, good, blocks * self._page, took))


def _pairs(left: Any, right: Any) -> Iterable[tuple[int, int]]:
    return zip(map(int, left), map(int, right), strict=True)
