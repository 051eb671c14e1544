"""Memory of the host: its size, the region that scheduler and workers share, and its slots."""

from __future__ import annotations

from penstock.instrumentation.vllm.zmq_ec.memory.slots import Slot, Slots

__all__ = [
    "Slot",
    "Slots",
]
