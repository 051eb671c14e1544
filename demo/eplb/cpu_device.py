"""What vLLM's expert balancer asks of an accelerator, on a machine that has none.

PyTorch's CPU backend has no events and no current stream. Work on the CPU has ended when its call returns, so an event
that remembers when it was recorded and a CPU stream are all that is missing; vLLM's own code runs unchanged on top.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class HostEvent:
    """In the place of ``torch.Event``: everything before it is over by the time that it is recorded."""

    def __init__(self, **_options: Any) -> None:
        self._recorded = 0.0

    def record(self, _stream: Any = None) -> None:
        """Note the time."""
        self._recorded = time.monotonic()

    def wait(self, _stream: Any = None) -> None:
        """Return: there is nothing to wait for."""

    def synchronize(self) -> None:
        """Return: there is nothing to wait for."""

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds from this event to *end*."""
        return (end._recorded - self._recorded) * 1000.0


def stream() -> Any:
    """Return a stream of the CPU."""
    return torch.Stream(device="cpu")


def install() -> None:
    """Put the substitutes into PyTorch, in a process that runs nothing else."""
    torch.Event = HostEvent
    torch.accelerator.current_stream = lambda *_arguments: stream()
    torch.accelerator.set_stream = lambda _stream: None
