"""Running, runnable and blocked time of threads and processes, from the kernel's accounting.

What neighbours on the machine take is in the second, so the third says what a thread lost to its own process, however busy the
machine is. It is never below zero. Linux.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Seconds of one thread, from an arbitrary origin.

    Attributes:
        wall: by the clock.
        running: on a core.
        queued: ready, while others had the cores.

    """

    wall: float
    running: float
    queued: float

    @classmethod
    def now(cls) -> Self:
        """Return the calling thread's times.

        Raises:
            OSError: the kernel keeps no such account.

        """
        # The file's own figure of what has run is as old as the last tick.
        queued = int(_SCHEDSTAT.read_text().split()[1]) / _NS
        return cls(time.monotonic(), time.thread_time(), queued)

    def since(self, before: ThreadTime) -> ThreadTime:
        """Return the difference to *before*."""
        return ThreadTime(self.wall - before.wall, self.running - before.running, self.queued - before.queued)

    @property
    def blocked(self) -> float:
        """Seconds blocked on anything but a core."""
        return max(self.wall - self.running - self.queued, 0.0)


def cpu_seconds(pid: int) -> float:
    """Return what the threads that a process has now have run, to the last tick of each."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / _NS
