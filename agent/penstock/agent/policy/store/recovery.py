"""Connections to an existing ``policy.db``; detects a damaged one, archives it, and restores its copy."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from penstock.agent.state import error_text, is_bad_state, is_unwritable, set_aside

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger(__name__)

_TABLES = ("counter", "policy", "audit", "pause", "timed_order", "audit_extent")


def copy_of(path: Path) -> Path:
    """Return the path of a database's copy."""
    return path.with_name(f"{path.stem}-copy{path.suffix}")


def recover(path: Path, known: int, damage: str = "", *, copies: bool = True) -> str:
    """Archive a damaged database and restore its copy; return a sentence, empty if nothing was done.

    Args:
        path: of the database.
        known: the schema version that this agent reads.
        damage: damage found by the caller; empty for none.
        copies: whether to try the copy.

    """
    copy = copy_of(path)
    trouble = damage or _damage(path, known) or _contradiction(path, copy, known)
    if trouble:
        done = f"{path.name} was damaged ({trouble}) and was set aside as {set_aside(path, trouble)}"
    elif path.exists() or not copy.exists():
        return ""
    else:
        done = f"{path.name} was gone"
        # A leftover write-ahead log would be applied to the copy.
        path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    if copies and copy.exists() and not _damage(copy, known) and _version(copy) == known:
        changed = datetime.fromtimestamp(copy.stat().st_mtime, UTC).isoformat(timespec="seconds")
        # By a rename, so that a kill leaves no half of it.
        written = path.with_suffix(".tmp")
        shutil.copyfile(copy, written)
        written.replace(path)
        done += f"; its copy of {changed} is in force"
    else:
        done += "; there is no copy: all policies, pauses and their audit log are gone, set them again"
    _log.error("the policies were recovered", what=done)
    return done


def _contradiction(path: Path, copy: Path, known: int) -> str:
    """Return the damage of an intact database that contradicts its copy; empty for none.

    SQLite takes an empty file for a new database. A database of another version has a copy of that version.
    """
    if not (path.exists() and copy.exists()):
        return ""
    version = _version(path)
    if not version:
        return "it is empty"
    if version != known and not _damage(copy, known) and _version(copy) == known:
        return f"its header says version {version}, its copy {_version(copy)}"
    return ""


def _version(path: Path) -> int:
    with closing(connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _damage(path: Path, known: int) -> str:
    """Return the damage of a database; empty if it is intact or absent."""
    if not path.exists():
        return ""
    try:
        with closing(connect(path)) as connection:
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                return str(verdict)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != known:
                return ""
            for table in _TABLES:
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  (constants)
            return _spoilt(connection)
    except Exception as error:
        if is_bad_state(error):
            return error_text(error)
        raise


def _spoilt(connection: sqlite3.Connection) -> str:
    """Return the policy that differs from its text in the audit log; empty for none."""
    rows = connection.execute(
        "SELECT policy.name, policy.manifest, audit.new_manifest FROM policy LEFT JOIN audit"
        " ON audit.name = policy.name AND audit.new_generation = policy.generation"
    )
    for name, manifest, audited in rows:
        if json.loads(manifest)["metadata"]["name"] != name or audited not in (None, manifest):
            return f"policy {name!r} is not what was stored"
    return ""


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection; in exclusive mode if the disk has no room for the shared-memory file."""
    try:
        return _begin(path, "NORMAL")
    except sqlite3.OperationalError as error:
        if not is_unwritable(error):
            raise
        return _begin(path, "EXCLUSIVE")


def _begin(path: Path, locking: str) -> sqlite3.Connection:
    # mode=rw: never creates the file.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )
    try:
        connection.execute(f"PRAGMA locking_mode = {locking}")
        connection.execute("PRAGMA user_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
