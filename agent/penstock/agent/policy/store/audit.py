"""The append-only audit log: author, time, reason, old and new content of every change; the oldest entries are deleted above a bound."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

MAX_TEXT = 1024
# Only these actions make a generation of a policy; pauses and orders have names, too.
_CONTENT = (
    "SELECT new_manifest FROM audit WHERE name = ? AND new_generation = ?"
    " AND action IN ('apply', 'import', 'release', 'rollback') ORDER BY id DESC LIMIT 1"
)
_LAST = (
    "SELECT max(new_generation) FROM audit WHERE name = ?"
    " AND action IN ('apply', 'import', 'release', 'rollback', 'delete')"
)
_PREVIOUS = (
    "SELECT max(new_generation) FROM audit WHERE name = ? AND new_generation < ?"
    " AND action IN ('apply', 'import', 'release', 'rollback')"
)


@dataclass(frozen=True, slots=True)
class Change:
    """An entry without its id and time.

    Attributes:
        author: ``user@host`` over the unix socket, ``tls:NAME (user@host)`` over TCP, ``file:NAME``.
        action: ``apply``, ``delete``, ``rollback``, ``import``, ``release`` (a file's policy becomes imperative), ``pause``,
            ``resume``, ``quarantine-add``, ``quarantine-lift``, ``drill-start``, ``drill-stop``, ``forget-engine``,
            ``eject``,
            ``eject-off``, ``forget-peer``, ``debug-stacks``, ``recover`` (of the database) or ``trim`` (of the log itself).
        name: of the policy; for a pause, the engines; for an order, the peer or drill.
        old_generation: 0 for none.
        old_manifest: canonical JSON, also of an order; empty for none.

    """

    author: str
    action: str
    name: str
    reason: str = ""
    old_generation: int = 0
    new_generation: int = 0
    old_manifest: str = ""
    new_manifest: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the log."""

    id: int
    time_unix_nano: int
    change: Change

    @property
    def old_hash(self) -> str:
        """Hash of the old manifest; empty for none."""
        return _digest(self.change.old_manifest)

    @property
    def new_hash(self) -> str:
        """Hash of the new manifest; empty for none."""
        return _digest(self.change.new_manifest)


def append(connection: sqlite3.Connection, change: Change, time_unix_nano: int) -> None:
    """Add an entry, in the transaction of the change."""
    connection.execute(
        "INSERT INTO audit (time_unix_nano, author, action, name, reason, old_generation, new_generation,"
        " old_manifest, new_manifest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            time_unix_nano,
            change.author[:MAX_TEXT],
            change.action,
            change.name,
            change.reason[:MAX_TEXT],
            change.old_generation,
            change.new_generation,
            change.old_manifest,
            change.new_manifest,
        ),
    )


def entries(
    connection: sqlite3.Connection, name: str, limit: int, actions: Iterable[str] = ()
) -> list[AuditEntry]:
    """Return the newest *limit* entries, newest first; of all names if *name* is empty, of all actions without *actions*."""
    wanted = "".join(f"\n{each}\n" for each in actions)
    rows = connection.execute(
        "SELECT id, time_unix_nano, author, action, name, reason, old_generation, new_generation,"
        " old_manifest, new_manifest FROM audit WHERE ? IN ('', name)"
        " AND (? = '' OR instr(?, char(10) || action || char(10))) ORDER BY id DESC LIMIT ?",
        (name, wanted, wanted, limit),
    )
    return [AuditEntry(row[0], row[1], Change(*row[2:])) for row in rows]


def manifest_of(connection: sqlite3.Connection, name: str, generation: int) -> str:
    """Return the manifest of a generation of *name*; empty if there was none, or the log was trimmed."""
    row = connection.execute(_CONTENT, (name, generation)).fetchone()
    if row is None:
        row = connection.execute(
            "SELECT manifest FROM policy WHERE name = ? AND generation = ?", (name, generation)
        ).fetchone()
    return str(row[0]) if row else ""


def last_generation(connection: sqlite3.Connection, name: str) -> int:
    """Return the highest generation that *name* ever had; 0 if it never existed.

    For a name that the trimmed log no longer has: the highest generation of any deleted policy, so that none is reused.
    """
    known = connection.execute(_LAST, (name,)).fetchone()[0]
    present = connection.execute("SELECT max(generation) FROM policy WHERE name = ?", (name,)).fetchone()[0]
    lost = connection.execute("SELECT highest_deleted FROM audit_extent").fetchone()[0]
    return max(known or 0, present or 0) or int(lost)


def previous_generation(connection: sqlite3.Connection, name: str, before: int) -> int:
    """Return the newest generation of *name* below *before* that has a manifest; 0 for none."""
    return int(connection.execute(_PREVIOUS, (name, before)).fetchone()[0] or 0)


def _digest(manifest: str) -> str:
    return hashlib.sha256(manifest.encode()).hexdigest() if manifest else ""


_log = structlog.get_logger(__name__)

ACTION = "trim"
# Share of both bounds kept by a trim, so that not every change trims.
_LEFT = 0.9
_COLUMNS = ("author", "action", "name", "reason", "old_manifest", "new_manifest")
_ENTRY_BYTES = 64


def _size(row: str) -> str:
    return " + ".join([str(_ENTRY_BYTES), *(f"length(CAST({row}{name} AS BLOB))" for name in _COLUMNS)])


SCHEMA = f"""
CREATE TABLE audit_extent (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  entries INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  trimmed INTEGER NOT NULL DEFAULT 0,
  trimmed_to INTEGER NOT NULL DEFAULT 0,
  highest_deleted INTEGER NOT NULL DEFAULT 0
);
INSERT INTO audit_extent (one, entries, bytes) VALUES (1, 0, 0);
CREATE TRIGGER audit_grows AFTER INSERT ON audit
  BEGIN UPDATE audit_extent SET entries = entries + 1, bytes = bytes + {_size("NEW.")}; END;
CREATE TRIGGER audit_shrinks AFTER DELETE ON audit
  BEGIN UPDATE audit_extent SET entries = entries - 1, bytes = bytes - ({_size("OLD.")}); END;
CREATE TRIGGER audit_is_trimmed_onwards BEFORE UPDATE OF trimmed_to ON audit_extent
  WHEN NEW.trimmed_to < OLD.trimmed_to
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_not_erased BEFORE DELETE ON audit
  WHEN OLD.id > (SELECT trimmed_to FROM audit_extent)
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
  WHEN NEW.id BETWEEN 1 AND (SELECT trimmed_to FROM audit_extent) OR EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
"""  # noqa: S608  (constants)
"""Tables and triggers beside the audit log's table."""


@dataclass(frozen=True, slots=True)
class AuditLimit:
    """The size limit of the audit log."""

    entries: int = 50_000
    bytes: int = 16 << 20


def trim(connection: sqlite3.Connection, limit: AuditLimit, time_unix_nano: int) -> None:
    """Delete the oldest entries above the limit, in the transaction of a change, but never its own."""
    entries, size = connection.execute("SELECT entries, bytes FROM audit_extent").fetchone()
    if entries <= limit.entries and size <= limit.bytes:
        return
    number, last_nano, count = 0, 0, 0
    newest = connection.execute("SELECT max(id) FROM audit").fetchone()[0]
    oldest = connection.execute(
        f"SELECT id, time_unix_nano, {_size('')} FROM audit WHERE id < ? ORDER BY id",  # noqa: S608  (constants)
        (newest,),
    )
    for entry, nano, its_size in oldest:
        if entries <= _LEFT * limit.entries and size <= _LEFT * limit.bytes:
            break
        number, last_nano, count = entry, nano, count + 1
        entries, size = entries - 1, size - its_size
    if not count:
        return
    connection.execute(
        "UPDATE audit_extent SET trimmed = trimmed + :count, trimmed_to = :number, highest_deleted = max(highest_deleted,"
        " (SELECT coalesce(max(new_generation), 0) FROM audit WHERE id <= :number AND action = 'delete'))",
        {"count": count, "number": number},
    )
    connection.execute("DELETE FROM audit WHERE id <= ?", (number,))
    until = datetime.fromtimestamp(last_nano / 1e9, UTC).isoformat(timespec="seconds")
    reason = (
        f"the {count} oldest entries, to number {number} of {until}, were deleted: "
        f"the log keeps {limit.entries} entries and {limit.bytes >> 10} KiB"
    )
    _log.warning("the audit log was trimmed", what=reason)
    append(connection, Change("penstock-agent", ACTION, "audit log", reason), time_unix_nano)


def trimmed(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of entries ever deleted, and the id of the last one."""
    count, number = connection.execute("SELECT trimmed, trimmed_to FROM audit_extent").fetchone()
    return int(count), int(number)
