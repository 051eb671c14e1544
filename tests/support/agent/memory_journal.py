"""A journal in memory, for properties that need many."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.agent.aio import ThreadYield
from penstock.agent.journal.commit.transaction import Transaction
from penstock.agent.journal.database.schema import create_schema
from penstock.agent.journal.database.stored_rows import BatchParser
from penstock.agent.journal.index.requests import RequestLookup
from penstock.agent.journal.query.reader import Reader
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.model import Source

    from tests.support.agent.stories import Log


class SharedReader(Reader):
    """A reader of what a connection has written and not committed."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._stopped = lambda: False
        self._whereabouts = None
        self._damaged = lambda _: None
        self._parser = BatchParser()
        self._yield_now = ThreadYield()

    @property
    def _lookup(self) -> RequestLookup:  # type: ignore[override]  # a new one at each use
        """Return one that remembers nothing: what is rolled back gives its numbers to others."""
        return RequestLookup(self._database)


@contextmanager
def reader_of(log: Log, sources: Iterable[Source]) -> Iterator[Reader]:
    """Give a reader of a journal that holds *log*, each batch under its number and received at its time."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    try:
        create_schema(database)
        told = {source.epoch: source for source in sources}
        transaction = Transaction(database, {})
        for source in told.values():
            transaction.open_source(source, 0)
        for logged in log.batches:
            batch = Batch.FromString(logged.body)
            transaction.append(told[logged.epoch], batch, logged.body, logged.received_unix_nano)
        transaction.finish()
        yield SharedReader(database)
    finally:
        database.close()
