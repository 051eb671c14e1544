"""vLLM's ``ECCPUConnector``: reads from other engines over NIXL, copies to and from this machine's memory, fall-backs of its own."""

from __future__ import annotations

from penstock.instrumentation.vllm.ec.cpu.hook import CpuEc

__all__ = [
    "CpuEc",
]
