"""The calls about the agent itself: its state and problems, a backup of its directory, the page's address."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.events import read_in_thread
from penstock.agent.admin.lookups import timestamp_message
from penstock.agent.errors import ImpossibleError, StateError
from penstock.agent.journal import FILE as JOURNAL
from penstock.agent.journal import connect_reader
from penstock.agent.policy.store import FILE_NAME as POLICIES
from penstock.agent.state import size_of
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.journal import Reader


# Pages of 4 KiB between two checks of *stopped*.
_PAGES = 256


async def get_status(agent: AgentContext, request: admin.GetStatusRequest) -> admin.AgentStatus:
    """Return version, state and problems of the agent; with ``try_backend``, also try to reach the trace backend."""

    def read(reader: Reader) -> tuple[int, int, int, int]:
        return reader.first(), reader.last(), _bytes(agent.state_dir), disk_usage(agent.state_dir).free

    first, last, state_bytes, free = await read_in_thread(agent, read)
    status = admin.AgentStatus(
        version=__version__,
        state_dir=str(agent.state_dir),
        state_bytes=state_bytes,
        disk_free_bytes=free,
        log_first=first,
        log_last=last,
        degraded=agent.journal.error,
        now=timestamp_message(int(agent.clock() * 1e9)),
    )
    for fill in agent.statuses:
        fill(status)
    if request.try_backend and status.otlp_endpoint and not status.otlp_error:
        # The exporter finds out only when it has a span to send.
        status.otlp_error = await agent.try_backend()
    return status


def _bytes(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        # SQLite may remove a file between listing and stat.
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


async def issue_page_token(
    agent: AgentContext, request: admin.IssuePageTokenRequest
) -> admin.IssuePageTokenResponse:
    """Return the page's address and a token for the caller, whose name and role the request has by now."""
    return agent.page.issue(request)


class _Steps:
    """SQLite's progress callback: raises once *stopped* returns True."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def __call__(self, _status: int, _remaining: int, _total: int) -> None:
        if self._stopped():
            raise ImpossibleError("the agent is stopping; the backup was cancelled and removed")


async def backup(agent: AgentContext, request: admin.BackupRequest) -> admin.BackupResponse:
    """Write the backup; returns when it is complete, or fails if the agent stops first."""
    agent.journal.whereabouts.require_in_place()
    size = await asyncio.to_thread(write_backup, agent.state_dir, Path(request.path), agent.stopping.is_set)
    return admin.BackupResponse(path=request.path, bytes=size)


def write_backup(state_dir: Path, target: Path, stopped: Callable[[], bool] = lambda: False) -> int:
    """Copy the journal and the policies of *state_dir* to the new directory *target*; return its bytes.

    The agent may be running; each copy is a consistent snapshot, and commits continue. *target* appears when it is
    complete. Blocks, for seconds a gigabyte; cancelled soon after *stopped* returns True.

    Raises:
        ImpossibleError: *target* exists, or its parent does not; or *stopped* returned True.
        StateError: it could not be written, or there is nothing to copy.

    """
    if not target.is_absolute():
        raise ImpossibleError(f"{str(target)!r} is not an absolute path; give one on the agent's host")
    if target.exists():
        raise ImpossibleError(f"{target} exists already; give a new path")
    if not target.parent.is_dir():
        raise ImpossibleError(f"{target.parent} is not a directory on the agent's host; create it first")
    written = target.with_name(f".{target.name}.partial-{time.time_ns()}")
    try:
        written.mkdir(mode=0o700)
        for name in (JOURNAL, POLICIES):
            _copy(state_dir / name, written / name, _Steps(stopped))
        size = size_of(written)
        # Fails if it was created meanwhile and is not empty.
        written.rename(target)
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"the backup {target} could not be written: {error}") from error
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return size


def _copy(source: Path, target: Path, steps: _Steps) -> None:
    handle = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with closing(connect_reader(source)) as database, closing(sqlite3.connect(target)) as copy:
            # One read transaction for all steps: else a commit between two of them restarts the copy.
            database.execute("BEGIN")
            database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            database.backup(copy, pages=_PAGES, progress=steps)
        os.fsync(handle)
    finally:
        os.close(handle)
