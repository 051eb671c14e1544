"""Batches that the agent itself writes into the log about an engine."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from penstock.agent.model import AGENT_PROCESS, EngineKey, Source
from penstock.proto import SCHEMA_VERSION, __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def agent_source(agent_epoch: int, key: EngineKey) -> Source:
    """Return the source under which the agent writes about the engine *key*.

    One for each engine, so that counters and traces attribute its batches to the engine.
    """
    text = f"{agent_epoch}\0{key.server}\0{key.engine}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return Source(
        epoch=int.from_bytes(digest, "big") or 1,
        key=key,
        process=AGENT_PROCESS,
        penstock_version=__version__,
        schema_version=SCHEMA_VERSION,
    )


class SourceLog(Protocol):
    """The part of the journal that is used here."""

    agent_epoch: int

    async def open_source(self, source: Source) -> int:
        """Return the watermark of *source*."""


class AgentLog:
    """Assigns the numbers of the agent's own batches, one at a time."""

    def __init__(self, journal: SourceLog) -> None:
        self._journal = journal
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def next_batch(self, key: EngineKey) -> AsyncIterator[tuple[Source, int]]:
        """Yield the source and the number of the next batch about *key*, to be appended inside or not at all.

        Raises:
            FullError: the queue or the disk is full.
            StateError: the journal is closed.

        """
        source = agent_source(self._journal.agent_epoch, key)
        async with self._turn:
            yield source, await self._journal.open_source(source) + 1
