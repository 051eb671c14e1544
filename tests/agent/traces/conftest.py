"""A real journal that test stories are written to, and a real backend."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.journal.journal import Journal
from penstock.agent.state.budget import DEFAULT_LIMIT
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.stories import fill
from tests.support.otlp.backend import otlp_backend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    from penstock.agent.batch.rows import TransferSample
    from penstock.agent.model import Source
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.otlp.backend import OtlpBackend


class Book:
    """A journal on disk; it can be closed and opened again."""

    def __init__(self, directory: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.directory = directory
        self.journal = Journal.open(directory, limit=limit)

    async def add(self, source: Source, *entries: Event | TransferSample, **fields: Any) -> None:
        """Append one batch."""
        watermark = await self.journal.open_source(source)
        batch = fill(Batch(epoch=source.epoch, seq=watermark + 1, **fields), entries)
        await self.journal.append(source, batch, batch.SerializeToString())

    async def append(self, *stories: Iterable[tuple[Source, Event | TransferSample]]) -> None:
        """Append one batch for each entry, all in one commit where the writer can."""
        watermarks: dict[int, int] = {}
        appends = []
        for source, entry in chain(*stories):
            if source.epoch not in watermarks:
                watermarks[source.epoch] = await self.journal.open_source(source)
            watermarks[source.epoch] += 1
            batch = fill(Batch(epoch=source.epoch, seq=watermarks[source.epoch]), [entry])
            appends.append((source, batch, batch.SerializeToString()))
        await asyncio.gather(*(self.journal.append(*append) for append in appends))

    async def reopen(self) -> None:
        """Close the journal and open it again, as a restart does."""
        await self.journal.close()
        self.journal = Journal.open(self.directory)


@pytest.fixture
async def book(tmp_path: Path) -> AsyncIterator[Book]:
    """Give an empty journal."""
    book = Book(tmp_path)
    yield book
    await book.journal.close()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpBackend]:
    """Run a trace backend and point the environment to it."""
    with otlp_backend() as backend:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", backend.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")
        yield backend
