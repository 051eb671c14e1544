"""Writes a journal that holds a window of another's batches: the journal of a bundle."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from penstock.agent.batch import BatchColumns
from penstock.agent.journal.database import (
    connect,
    create_schema,
    decode_source,
    logged_of,
    parse_batch,
    signed,
)
from penstock.agent.journal.index import kind_rows, pack_keys, request_keys
from penstock.agent.state import DamagedError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.proto.v1.admin_pb2 import JournalWindow, StoredBatch

# Batches in a transaction: each has a cost of its own, and a window may be large.
_COMMIT_EVERY = 1_000
# A damaged batch: its reader says so, and its index stays empty.
_DAMAGE = (DamagedError, DecodeError, ValueError, IndexError)


class WindowWriter:
    """Writes the new database at *path*; one thread. It is complete, and one file, after :meth:`close`."""

    def __init__(self, path: Path, window: JournalWindow) -> None:
        """Create the database with everything but the batches.

        Raises:
            sqlite3.Error: it cannot be written.

        """
        self._database = connect(path)
        self._written = 0
        create_schema(self._database)
        self._database.execute("BEGIN")
        self._put(window)

    def _put(self, window: JournalWindow) -> None:
        write = self._database.executemany
        meta = {"created_unix_nano": window.created_unix_nano, "agent_epoch": window.agent_epoch}
        write("INSERT INTO meta VALUES (?, ?)", [*meta.items(), ("lost_batches", window.lost_batches)])
        if window.counted_batch:
            self._database.execute(
                "INSERT INTO folds VALUES ('metrics', ?, ?)", (window.counted_batch, window.counters)
            )
        for row in window.sources:
            source = decode_source(row.epoch, row.hello.SerializeToString())
            self._database.execute(
                "INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    signed(row.epoch), row.hello.SerializeToString(deterministic=True), *source.key, source.process, row.watermark,
                    row.opened_unix_nano, row.last_seen_unix_nano, row.closed_unix_nano or None, row.last_batch,
                ),
            )  # fmt: skip
        write(
            "INSERT INTO open_deferrals VALUES (?, ?, ?, ?, ?)",
            [
                (signed(row.epoch), row.request_id, row.reason, row.start, row.batch)
                for row in window.deferrals
            ],
        )
        self._database.execute("INSERT INTO sqlite_sequence VALUES ('batches', ?)", (window.last_batch,))

    def add(self, batch: StoredBatch) -> None:
        """Write a batch and its index."""
        row = (
            batch.id, signed(batch.epoch), batch.seq, batch.received_unix_nano, batch.body, batch.packed,
        )  # fmt: skip
        self._database.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", row)
        with suppress(*_DAMAGE):
            logged = logged_of(row)
            contents = BatchColumns(parse_batch(logged), logged.body)
            kinds = [(kind, batch.id, newest) for kind, newest in kind_rows(contents)]
            keys = request_keys(contents)
            self._database.executemany("INSERT INTO kinds VALUES (?, ?, ?)", kinds)
            if keys:
                self._database.execute("INSERT INTO recent VALUES (?, ?)", (batch.id, pack_keys(keys)))
        self._written += 1
        if self._written % _COMMIT_EVERY == 0:
            self._database.execute("COMMIT")
            self._database.execute("BEGIN")

    def close(self) -> None:
        """Commit, and fold the write-ahead log into the file."""
        try:
            if self._database.in_transaction:
                self._database.execute("COMMIT")
            self._database.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._database.close()
