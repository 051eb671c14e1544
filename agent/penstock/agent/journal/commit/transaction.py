"""One write transaction: the changes of the tables for each command."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import BatchColumns
from penstock.agent.errors import GapError
from penstock.agent.journal.commit.open_deferrals import OpenDeferrals
from penstock.agent.journal.database import encode_source, pack, signed
from penstock.agent.journal.index import kind_rows, pack_keys, request_keys
from penstock.agent.model import AGENT_PROCESS

if TYPE_CHECKING:
    import sqlite3

    from penstock.agent.model import Source
    from penstock.proto.v1.ingest_pb2 import Batch

# Waits that end in one transaction.
_MANY = 100


class Appended(NamedTuple):
    """The result of an append; ``batch_id`` is 0 for a batch that was stored before."""

    watermark: int
    batch_id: int


class Transaction:
    """A transaction on *database*, begun by the caller and finished by :meth:`finish` and the caller's commit.

    ``watermarks`` are the committed ones; this transaction's stay apart in ``staged`` until it has committed.
    ``opened`` counts the sources that were seen for the first time in this life of the agent, ``keys`` what the index of
    requests takes, up to the batch ``last``.
    """

    def __init__(self, database: sqlite3.Connection, watermarks: dict[int, int]) -> None:
        self._database = database
        self._committed = watermarks
        self.staged: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._batches: dict[int, int] = {}
        self._kinds: list[tuple[int, int, int]] = []
        self._requests: list[tuple[int, bytes]] = []
        self._waits = OpenDeferrals()
        self.opened = 0
        self.keys = 0
        self.last = 0

    def open_source(self, source: Source, now: int) -> int:
        """Record that *source* has connected; return its watermark."""
        self.opened += source.epoch not in self._committed
        self._database.execute(
            "INSERT INTO sources VALUES (?, ?, ?, ?, ?, 0, ?, ?, NULL, 0)"
            " ON CONFLICT (epoch) DO UPDATE SET hello = excluded.hello,"
            " last_seen_unix_nano = excluded.last_seen_unix_nano, closed_unix_nano = NULL",
            (signed(source.epoch), encode_source(source), *source.key, source.process, now, now),
        )
        if not self._knows(source.epoch):
            (self.staged[source.epoch],) = self._database.execute(
                "SELECT watermark FROM sources WHERE epoch = ?", (signed(source.epoch),)
            ).fetchone()
        return self._watermark(source.epoch)

    def _knows(self, epoch: int) -> bool:
        """Return whether the source was opened in this life of the agent."""
        return epoch in self.staged or epoch in self._committed

    def _watermark(self, epoch: int) -> int:
        return self.staged[epoch] if epoch in self.staged else self._committed[epoch]

    def append(
        self, source: Source, batch: Batch, body: bytes, now: int, contents: BatchColumns | None = None
    ) -> Appended:
        """Append *batch* and all that the tables derive from it; *contents* are its columns, if they were read already.

        Raises:
            GapError: its number is not the next one; nothing is written, but that the source is opened.

        """
        watermark = (
            self._watermark(source.epoch) if self._knows(source.epoch) else self.open_source(source, now)
        )
        if batch.seq > watermark + 1:
            raise GapError(f"batch {batch.seq} came after {watermark}; resend from {watermark + 1}")
        self._seen[source.epoch] = now
        if batch.HasField("goodbye"):
            self._close(source.epoch, now)
        if batch.seq <= watermark:
            return Appended(watermark, 0)
        batch_id = self._database.execute(
            "INSERT INTO batches (epoch, seq, received_unix_nano, body, packed) VALUES (?, ?, ?, ?, ?)",
            (signed(source.epoch), batch.seq, now, *pack(body)),
        ).lastrowid
        assert batch_id is not None  # noqa: S101  (an INSERT has one)
        contents = contents or BatchColumns(batch)
        self._kinds += [(row.kind, batch_id, row.newest_unix_nano) for row in kind_rows(contents)]
        if keys := request_keys(contents):
            self._requests.append((batch_id, pack_keys(keys)))
            self.keys += len(keys)
            self.last = batch_id
        self._waits.add_batch(signed(source.epoch), batch_id, contents)
        if source.process == AGENT_PROCESS:
            for _, event in contents.in_order(("source_lost",)):
                self._close(event.source_lost.epoch, now)
            for _, event in contents.in_order(("source_stopped",)):
                # The word that it did not say itself is its last one.
                self._close(event.source_stopped.epoch, now, batch_id)
        self._batches[source.epoch] = batch_id
        self.staged[source.epoch] = batch.seq
        return Appended(batch.seq, batch_id)

    def _close(self, epoch: int, now: int, last_batch: int = 0) -> None:
        self._database.execute(
            "UPDATE sources SET closed_unix_nano = ?, last_batch = max(last_batch, ?) WHERE epoch = ?",
            (now, last_batch, signed(epoch)),
        )
        self._waits.drop_source(signed(epoch))
        self._database.execute("DELETE FROM open_deferrals WHERE epoch = ?", (signed(epoch),))

    def save_metrics_state(self, batch_id: int, blob: bytes) -> None:
        """Replace the saved state of the metrics."""
        self._database.execute("INSERT OR REPLACE INTO folds VALUES ('metrics', ?, ?)", (batch_id, blob))

    def save_cursor(self, name: str, low: int, exported: int) -> None:
        """Replace a cursor."""
        self._database.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)", (name, low, exported))

    def restart_counting(self, now: int) -> None:
        """Replace the time from which the counters count."""
        self._database.execute("INSERT OR REPLACE INTO meta VALUES ('created_unix_nano', ?)", (now,))

    def probe(self, now: int) -> None:
        """Write one value, to find out whether writes succeed."""
        self._database.execute("INSERT OR REPLACE INTO meta VALUES ('probed_unix_nano', ?)", (now,))

    def finish(self) -> None:
        """Write what was collected over the transaction; the caller commits next."""
        write = self._database.executemany
        write("INSERT INTO kinds VALUES (?, ?, ?)", sorted(self._kinds))
        write("INSERT INTO recent VALUES (?, ?)", self._requests)
        self._end_waits()
        write("INSERT OR REPLACE INTO open_deferrals VALUES (?, ?, ?, ?, ?)", self._waits.begun())
        write(
            "UPDATE sources SET watermark = ?, last_seen_unix_nano = ?, last_batch = max(last_batch, ?)"
            " WHERE epoch = ?",
            [
                (self._watermark(epoch), seen, self._batches.get(epoch, 0), signed(epoch))
                for epoch, seen in self._seen.items()
            ],
        )

    def _end_waits(self) -> None:
        """Delete deferrals of earlier transactions that ended in this one."""
        ended, closed = self._waits.ended, self._waits.closed
        most = len(ended) + len(closed)
        if most > _MANY:
            # Few waits are open, and most of those that end have begun in this transaction: one look at them all costs
            # less than a search for each.
            found = self._database.execute(
                "SELECT request_id FROM open_deferrals LIMIT ?", (most,)
            ).fetchall()
            if len(found) < most:
                waiting = {request_id for (request_id,) in found}
                ended = [wait for wait in ended if wait[1] in waiting]
                closed = [request for request in closed if request[1] in waiting]
        write = self._database.executemany
        write("DELETE FROM open_deferrals WHERE epoch = ? AND request_id = ? AND reason = ?", ended)
        write("DELETE FROM open_deferrals WHERE epoch = ? AND request_id = ?", closed)
