"""One write transaction: the commands that run in it, the changes of the tables for each, and the deferrals open at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from penstock.agent.batch import BatchColumns
from penstock.agent.errors import GapError, PenstockError
from penstock.agent.journal.database import encode_source, pack, signed
from penstock.agent.journal.index import kind_rows, pack_keys, request_keys
from penstock.agent.model import AGENT_PROCESS

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Callable

    from penstock.agent.model import Source
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.ingest_pb2 import Batch

# Waits that end in one transaction above which the table is asked once for all and not for each.
_MANY = 100
Write: TypeAlias = "Callable[[Transaction], None]"


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


class OpenDeferrals:
    """Collects the starts and ends of a transaction's deferrals, in the order of the log. Pure.

    What is in the table for anything of ``ended`` or ``closed`` goes first, then :meth:`begun` is written.

    Attributes:
        ended: (epoch, request, reason) of deferrals that ended.
        closed: (epoch, request) of requests that were closed: their deferral's end may have been dropped on the way.

    """

    def __init__(self) -> None:
        self.ended: list[tuple[int, str, int]] = []
        self.closed: list[tuple[int, str]] = []
        self._begun: dict[tuple[int, str], dict[int, tuple[Event, int]]] = {}

    def add_batch(self, epoch: int, batch_id: int, contents: BatchColumns) -> None:
        """Add the events of one batch."""
        groups = contents.groups
        # Where each ended last in this batch.
        ended: dict[tuple[str, int], int] = {}
        closed: dict[str, int] = {}
        if ends := groups.get("deferral_end"):
            reasons = ends.column("reason")
            self.ended += zip(repeat(epoch), ends.request_ids, reasons, strict=False)
            ended = dict(zip(zip(ends.request_ids, reasons, strict=True), ends.places, strict=True))
        if done := groups.get("request_closed"):
            self.closed += zip(repeat(epoch), done.request_ids, strict=False)
            closed = dict(zip(done.request_ids, done.places, strict=True))
        if self._begun:
            for request_id, reason in ended:
                self._begun.get((epoch, request_id), {}).pop(reason, None)
            for request_id in closed:
                self._begun.pop((epoch, request_id), None)
        if starts := groups.get("deferral_start"):
            for place, event, request_id, reason in zip(
                starts.places, starts.events, starts.request_ids, starts.column("reason"), strict=True
            ):
                if closed.get(request_id, -1) < place and ended.get((request_id, reason), -1) < place:
                    self._begun.setdefault((epoch, request_id), {})[reason] = (event, batch_id)

    def drop_source(self, epoch: int) -> None:
        """Drop the deferrals of a source that has ended."""
        for key in [key for key in self._begun if key[0] == epoch]:
            del self._begun[key]

    def begun(self) -> list[tuple[int, str, int, bytes, int]]:
        """Return the rows of deferrals that have started and not ended: epoch, request, reason, serialized start, batch."""
        return [
            (epoch, request_id, reason, start.SerializeToString(), batch_id)
            for (epoch, request_id), reasons in self._begun.items()
            for reason, (start, batch_id) in reasons.items()
        ]


class Command(Protocol):
    """Something to be done inside a transaction."""

    size: int

    def run(self, transaction: Transaction) -> Any:
        """Do it; a PenstockError concerns only this command, and must come before its first write."""


def probe(transaction: Transaction) -> None:
    """Write something, to find out whether the disk can be written."""
    transaction.probe(time.time_ns())


def run_command(command: Command, transaction: Transaction) -> Any:
    """Return the result of *command*, or the PenstockError that it raised."""
    try:
        return command.run(transaction)
    except PenstockError as error:
        return error


@dataclass(slots=True)
class Append:
    """Append a batch.

    Attributes:
        ahead: the future is resolved before what follows the log has the batch.

    """

    source: Source
    contents: BatchColumns
    body: bytes
    future: asyncio.Future[Appended]
    size: int
    ahead: bool = False

    def run(self, transaction: Transaction) -> Appended:
        """Append it, received now."""
        return transaction.append(self.source, self.contents.batch, self.body, time.time_ns(), self.contents)


@dataclass(slots=True)
class Open:
    """Open a source."""

    source: Source
    future: asyncio.Future[int]
    size: int = 0

    def run(self, transaction: Transaction) -> int:
        """Open it; return its watermark."""
        return transaction.open_source(self.source, time.time_ns())
