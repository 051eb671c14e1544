"""Processes that tests stop where they stand."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.support.agent.agent import wait_until


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until none of the process's threads runs any more; SIGCONT lets it go on.

    One thread takes the signal and stops the others: until it has its turn, they serve on.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not _running(Path(f"/proc/{pid}")), f"all threads of {pid} have stopped")


def stop_group(group: int) -> None:
    """Do the same to all processes of a group."""
    os.killpg(group, signal.SIGSTOP)
    wait_until(
        lambda: not any(_running(each) for each in Path("/proc").glob("[0-9]*") if _group(each) == group),
        f"all processes of the group {group} have stopped",
    )


def _running(process: Path) -> bool:
    """Whether one of its threads is neither stopped nor dead."""
    return any((_fields(stat) or "X")[0] not in "TtZX" for stat in process.glob("task/[0-9]*/stat"))


def _group(process: Path) -> int | None:
    fields = _fields(process / "stat")
    return int(fields[2]) if fields else None


def _fields(stat: Path) -> list[str]:
    """Return state, parent, process group, …: what follows the command, which may have any character."""
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(") ")[2].split()
    return []
