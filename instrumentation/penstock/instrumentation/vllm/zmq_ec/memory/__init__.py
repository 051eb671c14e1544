"""Slots, the shared region, what memory there is."""

from __future__ import annotations

from penstock.instrumentation.vllm.zmq_ec.memory.slots import Slot, Slots

__all__ = [
    "Slot",
    "Slots",
]
