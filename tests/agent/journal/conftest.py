"""A journal in a temporary directory, and a way to write into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.journal.journal import Journal
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
def source() -> Source:
    """Return a source whose epoch needs all 64 bits."""
    return Source(
        epoch=2**64 - 5,
        key=EngineKey("left", "0"),
        process="engine-core",
        role="decode",
        role_guessed=True,
        model="tiny",
        labels={"tier": "gold"},
    )


@pytest.fixture
async def journal(tmp_path) -> AsyncIterator[Journal]:
    """Open a journal; it is closed at the end."""
    journal = Journal.open(tmp_path / "state")
    yield journal
    await journal.close()


@pytest.fixture
def log(journal, source) -> Callable[..., object]:
    """Append a batch of the source, given its number, its events and other fields; return the watermark."""

    async def append(seq: int, *events, source=source, **fields):
        batch = Batch(epoch=source.epoch, seq=seq, events=events, **fields)
        return await journal.append(source, batch, batch.SerializeToString())

    return append
