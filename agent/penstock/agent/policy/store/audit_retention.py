"""Bounds the audit log: deletes the oldest entries, and records that in the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from penstock.agent.policy.store import audit

if TYPE_CHECKING:
    import sqlite3

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
    audit.append(connection, audit.Change("penstock-agent", ACTION, "audit log", reason), time_unix_nano)


def trimmed(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of entries ever deleted, and the id of the last one."""
    count, number = connection.execute("SELECT trimmed, trimmed_to FROM audit_extent").fetchone()
    return int(count), int(number)
