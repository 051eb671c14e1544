"""vLLM's ExampleConnector on a store that may hang, as a file server does that has gone: reads then wait in the kernel."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

if TYPE_CHECKING:
    from collections.abc import Iterator

_GATE: Final = "gate"


class HangingConnector(ExampleConnector):
    """Waits before each load for as long as the store hangs."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load once the store answers."""
        loads = any(not each.is_store for each in self._get_connector_metadata().requests)
        with suppress(FileNotFoundError):
            if loads:
                Path(self._storage_path, _GATE).read_bytes()
        super().start_load_kv(forward_context, **kwargs)


def hanging(directory: Path) -> dict[str, Any]:
    """Return the KVTransferConfig of the connector on *directory*."""
    return {
        "kv_connector": "HangingConnector",
        "kv_connector_module_path": __name__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(directory)},
    }


@contextmanager
def hung(store: Path) -> Iterator[None]:
    """Let loads from *store* hang: a pipe that nobody writes to is in their way."""
    gate = store / _GATE
    os.mkfifo(gate)
    try:
        yield
    finally:
        # Who waits for a writer has met one; who comes later finds no pipe.
        handle = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
        gate.unlink()
        os.close(handle)
