"""Measures the memory that is left, so that no more is taken at start."""

from __future__ import annotations

import contextlib
from pathlib import Path


class OutOfMemoryError(RuntimeError):
    """The host does not have the memory that the configuration asks for; says how much it has."""


def check(size: int, purpose: str, setting: str, *, tables: int = 0) -> None:
    """Refuse to take more than host and control group have left: the kernel would kill a process for it.

    *size* are the bytes of *setting*, *tables* those that are taken besides.

    Raises:
        OutOfMemoryError: it is more.

    """
    left = spare()
    if not 0 < size < left - tables:
        besides = f" and {tables} for their tables" if tables else ""
        raise OutOfMemoryError(
            f"ZmqECConnector cannot reserve {size} bytes for {purpose}{besides}: {max(left, 0)} are left. "
            f"Set {setting} in ec_connector_extra_config (or ec_buffer_size) to what can be spared."
        )


def spare(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that host and control group have left, as far as the kernel reports them.

    Cached files count as left: a group is full of them once a model has been read, and the kernel drops them first.
    """
    found = [2**63]
    with contextlib.suppress(OSError, ValueError, KeyError):
        found.append(_numbers(meminfo)["MemAvailable"] << 10)
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max" where there is no limit
        limit = int((group / "memory.max").read_text())
        stat = _numbers(group / "memory.stat")
        used = int((group / "memory.current").read_text()) - stat["inactive_file"] - stat["active_file"]
        found.append(limit - used)
    return min(found)


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in lines}
