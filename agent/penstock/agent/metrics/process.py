"""What the agent's own process costs, as the kernel counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc/self")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """The process's use of the machine; a number is None where the system does not tell it.

    Attributes:
        cpu_seconds: user and system time, of all threads, since the start.

    """

    resident_bytes: int | None
    cpu_seconds: float
    open_fds: int | None


def process_use() -> ProcessUse:
    """Return what this process uses now."""
    return ProcessUse(_resident_bytes(), time.process_time(), _open_fds())


def _resident_bytes() -> int | None:
    try:
        return int((_PROC / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def _open_fds() -> int | None:
    try:
        # Without the one that is open for this look.
        return len(os.listdir(_PROC / "fd")) - 1  # noqa: PTH208  (names are all that is needed)
    except OSError:
        return None
