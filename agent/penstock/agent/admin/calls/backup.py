"""``Backup``: a copy of the state directory that an agent can start on."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.errors import ImpossibleError, StateError
from penstock.agent.journal import FILE as JOURNAL
from penstock.agent.journal import connect_reader
from penstock.agent.policy.store import FILE_NAME as POLICIES
from penstock.agent.state import size_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.admin.support import AgentContext


# Copied between two looks at whether to go on: a mebibyte.
_PAGES = 256


class _Steps:
    """Called by SQLite after each step."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def __call__(self, _status: int, _remaining: int, _total: int) -> None:
        if self._stopped():
            raise ImpossibleError("the agent is stopping; the backup was given up, and nothing of it is left")


async def backup(agent: AgentContext, request: admin.BackupRequest) -> admin.BackupResponse:
    """Write the backup; answers when it is complete, or was given up because the agent stops."""
    agent.journal.whereabouts.check()
    size = await asyncio.to_thread(write_backup, agent.state_dir, Path(request.path), agent.stopping.is_set)
    return admin.BackupResponse(path=request.path, bytes=size)


def write_backup(state_dir: Path, target: Path, stopped: Callable[[], bool] = lambda: False) -> int:
    """Copy the journal and the policies of *state_dir*, of a running agent too, to the new directory *target*.

    Each database is as it was at one moment. *target* appears when it is complete. Blocks, for seconds a gigabyte;
    commits go on meanwhile. Given up soon after *stopped* returns True. Returns its bytes.

    Raises:
        ImpossibleError: *target* is there already, or its place is not; or it was stopped.
        StateError: it could not be written, or there is nothing to copy.

    """
    if not target.is_absolute():
        raise ImpossibleError(f"{str(target)!r} is no absolute path on the agent's host; give one")
    if target.exists():
        raise ImpossibleError(f"{target} is there already; give a path that is not")
    if not target.parent.is_dir():
        raise ImpossibleError(f"{target.parent} is no directory on the agent's host; create it first")
    written = target.with_name(f".{target.name}.partial-{time.time_ns()}")
    try:
        written.mkdir(mode=0o700)
        for name in (JOURNAL, POLICIES):
            _copy(state_dir / name, written / name, _Steps(stopped))
        size = size_of(written)
        # Fails if it has appeared meanwhile and holds something.
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
            # One moment for all steps: without it a commit between two of them begins the copy anew.
            database.execute("BEGIN")
            database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            database.backup(copy, pages=_PAGES, progress=steps)
        os.fsync(handle)
    finally:
        os.close(handle)
