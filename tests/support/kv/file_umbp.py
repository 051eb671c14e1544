"""vLLM's UMBPStoreConnector over a pool of files: MoRI, whose runtime it asks for, is for ROCm.

Connector, scheduler's side and worker's side are vLLM's (0.33); only who keeps the blocks is ours, by the way that vLLM has for that
(``UMBPRuntimeFactory.register``). ``kv_connector_module_path`` names this module.
"""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.v1.umbp import (
        TransferJobState,
        UMBPRuntimeFactory,
        UMBPStoreConnector,
    )

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UMBPStoreConnector", "transfer"]


def transfer(directory: Path, **more: Any) -> dict[str, Any]:
    """Return the KVTransferConfig of a connector whose pool is *directory*; *more* are options of the connector."""
    return {
        "kv_connector": "UMBPStoreConnector",
        "kv_connector_module_path": __name__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"path": str(directory), "key_namespace": "tests", **more},
    }


class FileRuntime:
    """Gives the handles of both sides."""

    def __init__(self, config: Any) -> None:
        self._pool = Path(config.options["path"])
        self._pool.mkdir(parents=True, exist_ok=True)

    def create_scheduler_handle(self, namespace: str, topology: Any, layout: Any) -> FilePool:
        """Return what answers look-ups."""
        del namespace, topology, layout
        return FilePool(self._pool)

    create_worker_handle = create_scheduler_handle


class FilePool:
    """A file for each key. While there is a file ``gate`` loads wait; one ``gone`` has all of them raise."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def lookup(self, keys: Sequence[str]) -> list[bool]:
        """Say which keys are there."""
        return [(self._directory / key).exists() for key in keys]

    def clear(self) -> bool:
        """Clear nothing."""
        return False

    def close(self) -> None:
        """Keep the files."""

    def register_buffers(self, kv_caches: Any) -> None:
        """Need nothing: plans have addresses."""

    def store(self, plans: Sequence[Any]) -> Any:
        """Write each block to its file."""
        job = TransferJobState(tuple(plans))
        job.start()
        for plan in plans:
            pages = (ctypes.string_at(each.base_address, each.length) for each in plan.ranges)
            (self._directory / plan.key).write_bytes(b"".join(pages))
        job.complete()
        return job

    def load(self, plans: Sequence[Any]) -> Any:
        """Begin to load; what there is to do is done when somebody asks."""
        return TransferJobState(tuple(plans))

    def poll(self, job: Any) -> Any:
        """Return the job once it has ended."""
        return None if (self._directory / "gate").exists() else self.wait(job)

    def wait(self, job: Any) -> Any:
        """Read the files; one that is cut short or gone fails its key."""
        if (self._directory / "gone").exists():
            raise ConnectionResetError("the pool is gone")
        if job.status.value == "pending":
            job.start()
            for plan in job.plans:
                self._read(job, plan)
        return job

    def _read(self, job: Any, plan: Any) -> None:
        file = self._directory / plan.key
        data = file.read_bytes() if file.exists() else b""
        if len(data) != sum(each.length for each in plan.ranges):
            job.fail([plan.key], "the object is not whole")
            return
        for each in plan.ranges:
            ctypes.memmove(each.base_address, data[: each.length], each.length)
            data = data[each.length :]
        job.complete([plan.key])

    def publish(self, job: Any) -> None:
        """Do nothing: a file is there at once."""


UMBPRuntimeFactory.register("embedded", FileRuntime)
