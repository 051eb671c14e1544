"""Backups: a state directory of its own that an agent can be started on."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.agent.errors import ImpossibleError, StateError
from penstock.agent.journal.connect import connect_reader
from penstock.agent.journal.schema import FILE as JOURNAL
from penstock.agent.policy.database import FILE_NAME as POLICIES
from penstock.agent.setaside import size_of

if TYPE_CHECKING:
    from pathlib import Path


def back_up(state_dir: Path, target: Path) -> int:
    """Copy the journal and the policies of *state_dir*, of a running agent too, to the new directory *target*.

    Each database is as it was at one moment. *target* appears when it is complete. Blocks, for seconds a gigabyte;
    commits go on meanwhile. Returns its bytes.

    Raises:
        ImpossibleError: *target* is there already, or its place is not.
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
            _copy(state_dir / name, written / name)
        size = size_of(written)
        # Fails if it has appeared meanwhile and holds something.
        written.rename(target)
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"the backup {target} could not be written: {error}") from error
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return size


def _copy(source: Path, target: Path) -> None:
    handle = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with closing(connect_reader(source)) as database, closing(sqlite3.connect(target)) as copy:
            database.backup(copy)
        os.fsync(handle)
    finally:
        os.close(handle)
