"""Until 0.29: a NIXL worker's KV cache lies in memory of one type."""

from __future__ import annotations

from typing import Any


def mixes_memory_types(worker: Any) -> bool:
    """Return whether a NIXL worker's KV cache lies in memory of several types, the device's and the host's."""
    return bool(getattr(worker, "_mixed_mem_types", False))
