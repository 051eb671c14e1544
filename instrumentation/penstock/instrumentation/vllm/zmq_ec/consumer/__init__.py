"""Fetches them ahead of scheduling."""

from __future__ import annotations

from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Expected
from penstock.instrumentation.vllm.zmq_ec.consumer.item_state import Loaded, LoadOrder

__all__ = [
    "Expected",
    "LoadOrder",
    "Loaded",
]
