"""The real agent on clocks that another process sets forward: a week of uptime in minutes.

``python -m benchmarks.load.shifted_agent`` with the agent's own options. ``SHIFTED_CLOCK`` names a file of eight bytes, the
nanoseconds by which the clocks are ahead. :class:`ClockFile` writes it; each look at a clock reads it, so the shift holds at
once, in all threads, and after a restart. The event loop keeps the real time: else an engine that sends each second would be
silent for a quarter of an hour, and its stream be ended.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "SHIFTED_CLOCK"
_NANO: Final = 10**9
_SHIFT: Final = struct.Struct("<q")


class ClockFile:
    """The shift of the clocks of one agent; the file is made with a shift of 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shift = 0
        path.write_bytes(_SHIFT.pack(0))

    def forward(self, seconds: float) -> None:
        """Set the clocks forward by some seconds."""
        self._shift += round(seconds * _NANO)
        with self.path.open("r+b") as file:
            file.write(_SHIFT.pack(self._shift))

    def now(self) -> int:
        """Return the time of day on these clocks, in nanoseconds since 1970."""
        return time.time_ns() + self._shift


def install(path: Path) -> None:
    """Replace the time of day and the monotonic clock, before modules are imported that keep a reference."""
    with path.open("rb") as file:
        shared = mmap.mmap(file.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    wall, monotonic = time.time_ns, time.monotonic

    def shift() -> int:
        return int(_SHIFT.unpack_from(shared)[0])

    time.time_ns = lambda: wall() + shift()
    time.time = lambda: time.time_ns() / _NANO
    time.monotonic = lambda: monotonic() + shift() / _NANO
    asyncio.BaseEventLoop.time = lambda self: monotonic()  # type: ignore[method-assign]  # noqa: ARG005


def main() -> None:
    """Run the agent."""
    install(Path(os.environ[VARIABLE]))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from penstock.agent.daemon.main import main as agent

    agent()


if __name__ == "__main__":
    main()
