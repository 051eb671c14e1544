"""Fetches encoder outputs ahead of scheduling and loads them in the workers."""

from __future__ import annotations

from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Expected
from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import Loaded, LoadOrder

__all__ = [
    "Expected",
    "LoadOrder",
    "Loaded",
]
