"""CPU substitutes for the accelerator interface that vLLM's expert balancer uses.

PyTorch's CPU backend has no events and no current stream. CPU work is complete when its call returns, so an event that keeps
its record time and a CPU stream suffice; vLLM's own code runs unchanged.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class HostEvent:
    """Replaces ``torch.Event``: all earlier work is complete when it is recorded."""

    def __init__(self, **_options: Any) -> None:
        self._recorded = 0.0

    def record(self, _stream: Any = None) -> None:
        """Keep the current time."""
        self._recorded = time.monotonic()

    def wait(self, _stream: Any = None) -> None:
        """Return at once: the work is complete."""

    def synchronize(self) -> None:
        """Return at once: the work is complete."""

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds from this event to *end*."""
        return (end._recorded - self._recorded) * 1000.0


def stream() -> Any:
    """Return a stream of the CPU."""
    return torch.Stream(device="cpu")


def install() -> None:
    """Install the substitutes in PyTorch, for this whole process."""
    torch.Event = HostEvent
    torch.accelerator.current_stream = lambda *_arguments: stream()
    torch.accelerator.set_stream = lambda _stream: None
