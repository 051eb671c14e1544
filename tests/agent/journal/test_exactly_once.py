"""For any messages, order and restarts each acknowledged batch is in the log once."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.errors import GapError
from penstock.agent.journal.journal import Journal
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import transfer_failure

SOURCES = [Source(epoch=2**64 - n, key=EngineKey("", str(n)), process="worker") for n in range(1, 4)]

# A group is sent at once: (source, offset to the next number); offset 0 is right, below a duplicate, above a gap.
SENDS = st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2)), min_size=1, max_size=6)
STEPS = st.lists(st.one_of(SENDS, st.just("reopen"), st.just("connect")), min_size=1, max_size=12)


def batch_of(source: Source, seq: int) -> Batch:
    """Return the one batch that has this number."""
    return Batch(epoch=source.epoch, seq=seq, events=[transfer_failure(f"{source.key.engine}-{seq}")])


class Model:
    """Sends batches and keeps the expected content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.watermarks: dict[int, int] = defaultdict(int)
        self.announced: list[tuple[int, int, int]] = []
        self.open()

    def open(self) -> None:
        """Open the journal again."""
        self.journal = Journal.open(self.directory)
        self.journal.on_commit(
            lambda number, source, contents: self.announced.append((number, source.epoch, contents.batch.seq))
        )

    async def send(self, group: list[tuple[int, int]]) -> None:
        """Send a group concurrently; check that the answers equal those of a sequence."""
        sent, expected = [], []
        for index, offset in group:
            source = SOURCES[index]
            seq = max(1, self.watermarks[source.epoch] + 1 + offset)
            batch = batch_of(source, seq)
            sent.append(self.journal.append(source, batch, batch.SerializeToString()))
            if seq == self.watermarks[source.epoch] + 1:
                self.watermarks[source.epoch] = seq
            expected.append(
                GapError if seq > self.watermarks[source.epoch] else self.watermarks[source.epoch]
            )
        for source in SOURCES:
            await self.journal.open_source(source)
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(answer) if isinstance(answer, Exception) else answer for answer in answers] == expected

    async def run(self, steps: list[Any]) -> None:
        """Run the steps, then compare."""
        for step in steps:
            if step == "reopen":
                await self.journal.close()
                self.open()
            elif step == "connect":
                for source in SOURCES:
                    assert await self.journal.open_source(source) == self.watermarks[source.epoch]
            else:
                await self.send(step)
        await self.journal.close()
        self.check()

    def check(self) -> None:
        """Find each acknowledged batch once, in order, in the log, the announcements and the index."""
        with self.journal.reader() as reader:
            rows = reader.batches(0, limit=10_000)
            assert [(row.id, row.epoch, row.seq) for row in rows] == self.announced
            numbers: dict[int, list[int]] = defaultdict(list)
            for row in rows:
                numbers[row.epoch].append(row.seq)
                source = reader.source(row.epoch)
                assert source is not None
                assert row.body == batch_of(source, row.seq).SerializeToString()
            for source in SOURCES:
                watermark = self.watermarks[source.epoch]
                assert numbers[source.epoch] == list(range(1, watermark + 1))
                for seq in range(1, watermark + 2):
                    assert len(reader.request_batches(f"{source.key.engine}-{seq}")) == (seq <= watermark)
            assert len(list(reader.scan(limit=10_000))) == len(rows)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_the_log_holds_each_acknowledged_batch_exactly_once(steps):
    """Any interleaving of batches, duplicates, gaps, reconnects and restarts."""
    with tempfile.TemporaryDirectory() as directory:

        async def run() -> None:
            await Model(Path(directory)).run(steps)

        asyncio.run(run())
