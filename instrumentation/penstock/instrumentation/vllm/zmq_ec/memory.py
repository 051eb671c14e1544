"""How much memory there is, and taking some at start so that it cannot run out, or be slow, later."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np

_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE (Linux 5.14); the mmap module does not name it


class OutOfMemoryError(RuntimeError):
    """The host does not have the memory that the configuration asks for; says how much it has."""


def check(size: int, purpose: str, setting: str) -> None:
    """Refuse to take more than host and control group have left: the kernel would kill somebody for it.

    Raises:
        OutOfMemoryError: it is more.

    """
    spare = _spare()
    if not 0 < size < spare:
        raise OutOfMemoryError(
            f"ZmqECConnector cannot reserve {size} bytes for {purpose}: {max(spare, 0)} are left. "
            f"Set {setting} in ec_connector_extra_config (or ec_buffer_size) to what can be spared."
        )


def reserve(size: int) -> Any:
    """Return a numpy array of *size* bytes of this process's memory, all of it backed by pages."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, _POPULATE_WRITE):
        with contextlib.suppress(OSError):  # an older kernel: pages come when they are first written to
            area.madvise(advice)
    return np.frombuffer(area, dtype=np.uint8)


def _spare() -> int:
    found = [2**63]
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found)
