"""Reads a window of the journal as it is stored, for a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.journal.database import (
    BATCH_COLUMNS,
    connect_reader,
    decode_source,
    encode_source,
    unsigned,
)
from penstock.agent.parsing import mask_message
from penstock.proto.v1.admin_pb2 import JournalWindow, StoredBatch, StoredDeferral, StoredSource
from penstock.proto.v1.ingest_pb2 import Hello

if TYPE_CHECKING:
    from pathlib import Path

# Deferrals that have not ended: more than engines hold at a time.
_MAX_DEFERRALS = 10_000
# Batches in one answer; each has 2 MiB at most.
_AT_ONCE = 256


class WindowSize(NamedTuple):
    """Where a window begins, and what it holds: the id of its first batch, batches, and their bytes as stored."""

    first: int
    batches: int
    bytes: int


class WindowReader:
    """A read-only connection of its own; each call is a transaction of its own, so that none is long. One thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open the journal at *path*."""
        self._database = connect_reader(path)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def read(self) -> JournalWindow:
        """Return all but the batches."""
        meta = dict(self._database.execute("SELECT key, value FROM meta").fetchall())
        fold = self._database.execute("SELECT batch, body FROM folds WHERE name = 'metrics'").fetchone()
        (last,) = self._database.execute("SELECT coalesce(max(id), 0) FROM batches").fetchone()
        return JournalWindow(
            created_unix_nano=meta["created_unix_nano"],
            agent_epoch=meta["agent_epoch"],
            lost_batches=meta.get("lost_batches", 0),
            last_batch=last,
            counted_batch=0 if fold is None else fold[0],
            counters=b"" if fold is None else fold[1],
            sources=self._sources(),
            deferrals=self._deferrals(),
        )

    def size(self, since_unix_nano: int, counted: int) -> WindowSize:
        """Return the size of the window: batches received since then, and in any case those after *counted*."""
        (first,) = self._database.execute(
            "SELECT min(id) FROM batches WHERE received_unix_nano >= ?", (since_unix_nano,)
        ).fetchone()
        start = counted + 1 if first is None else min(first, counted + 1)
        count, size = self._database.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM batches WHERE id >= ?", (start,)
        ).fetchone()
        return WindowSize(start, count, size)

    def batches(self, below: int, first: int, max_bytes: int) -> list[StoredBatch]:
        """Return batches with ids below *below*, not below *first*, the highest first; they have *max_bytes* together."""
        found = []
        rows = self._database.execute(
            f"SELECT {BATCH_COLUMNS} FROM batches WHERE id < ? AND id >= ? ORDER BY id DESC LIMIT ?",  # noqa: S608  (constants)
            (below, first, _AT_ONCE),
        )
        try:
            for number, epoch, seq, received, body, packed in rows:
                max_bytes -= len(body)
                if max_bytes < 0:
                    break
                found.append(
                    StoredBatch(
                        id=number,
                        epoch=unsigned(epoch),
                        seq=seq,
                        received_unix_nano=received,
                        body=body,
                        packed=packed,
                    )
                )
        finally:
            rows.close()
        return found

    def _sources(self) -> list[StoredSource]:
        rows = self._database.execute(
            "SELECT epoch, hello, watermark, opened_unix_nano, last_seen_unix_nano, closed_unix_nano, last_batch"
            " FROM sources ORDER BY opened_unix_nano, rowid"
        )
        return [
            StoredSource(
                epoch=unsigned(epoch),
                hello=_without_secrets(unsigned(epoch), hello),
                watermark=watermark,
                opened_unix_nano=opened,
                last_seen_unix_nano=seen,
                closed_unix_nano=closed or 0,
                last_batch=last,
            )
            for epoch, hello, watermark, opened, seen, closed, last in rows
        ]

    def _deferrals(self) -> list[StoredDeferral]:
        rows = self._database.execute(
            "SELECT epoch, request_id, reason, start, batch FROM open_deferrals LIMIT ?", (_MAX_DEFERRALS,)
        )
        return [
            StoredDeferral(epoch=unsigned(epoch), request_id=request, reason=reason, start=start, batch=batch)
            for epoch, request, reason, start, batch in rows
        ]


def _without_secrets(epoch: int, stored: bytes) -> Hello:
    hello = Hello.FromString(encode_source(decode_source(epoch, stored)))
    hello.ClearField("secret")
    mask_message(hello)
    return hello
