"""The log stays within its limit: what is deleted, kept and counted."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.errors import FullError
from penstock.agent.journal.commit import retention, transaction
from penstock.agent.journal.commit.retention import TRACES
from penstock.agent.journal.database import schema
from penstock.agent.journal.journal import Journal
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.catalogue.from_log import TRANSFER_FAILURES
from penstock.agent.metrics.checkpoint import AggregatorCheckpoint
from penstock.agent.model import EngineKey, Source
from penstock.agent.state import budget
from penstock.agent.state.budget import MIB, Budget
from penstock.proto.v1.ingest_pb2 import Batch, Goodbye

from tests.support.agent.batches import deferral_start, noise, transfer_failure

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 2 * MIB
# Of a batch that is about a hundredth of that.
EVENTS = 12


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    """Let a limit be small, so that a test reaches it."""
    monkeypatch.setattr(schema, "MIN_LIMIT", 0)
    monkeypatch.setattr(Budget, "reserve", 64 << 10)


@pytest.fixture
def journal(tmp_path) -> Journal:
    """Open a journal with a small limit; the test's own log fixture closes it."""
    return Journal.open(tmp_path / "state", limit=LIMIT)


class Log:
    """Appends to a journal, as one source, batches of about 20 KiB."""

    def __init__(self, journal: Journal, source: Source) -> None:
        self.journal = journal
        self.source = source
        self.seq = 0

    async def add(self, count: int = 1, *, folded: bool = True, exported: bool = True) -> None:
        """Append *count* batches, and tell the journal that they are counted and delivered."""
        for _ in range(count):
            events = [transfer_failure(f"r{self.seq + 1}-{n}", error_text=noise(2000)) for n in range(EVENTS)]
            batch = Batch(epoch=self.source.epoch, seq=self.seq + 1, events=events)
            await self.journal.append(self.source, batch, batch.SerializeToString())
            self.seq += 1
            if folded:
                self.journal.save_metrics_state(self.seq, b"fold")
            if exported:
                self.journal.save_cursor(TRACES, self.seq + 1, self.seq)

    async def settled(self) -> None:
        """Wait until the writer has finished trimming."""
        async with asyncio.timeout(60):
            while self.journal._writer._trimming or self.journal._writer._latest or self.journal.error:  # noqa: ASYNC110  (a thread)
                await asyncio.sleep(0.001)
        await self.journal.open_source(self.source)


@pytest.fixture
async def log(journal, source):
    """Append to the small journal; it is closed at the end."""
    yield Log(journal, source)
    await journal.close()


def disk(directory: Path) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in directory.iterdir())


async def test_the_oldest_batches_go(journal, source, log):
    """The state stays within its limit; watermarks are kept; no row of a deleted batch is left."""
    most = 0
    for _ in range(40):
        await log.add(10)
        most = max(most, disk(journal.path.parent))
    await log.settled()
    assert most <= LIMIT
    usage = journal.usage
    assert usage.used_bytes <= usage.file_bytes <= usage.limit_bytes < LIMIT
    assert journal.watermark(source.epoch) == log.seq == 400
    with journal.reader() as reader:
        first = reader.first()
        assert usage.pruned == first - 1 > 300
        assert usage.unexported == 0
        assert [row.id for row in reader.batches(0, limit=1000)] == list(range(first, 401))
        assert len(list(reader.scan(limit=10_000))) == (401 - first) * EVENTS
        assert reader.request_batches(f"r{first - 1}-0") == []
        assert [row.id for row in reader.request_batches(f"r{first}-0")] == [first]
        assert reader.source(source.epoch) == source


@pytest.mark.parametrize(
    "steps",
    [
        (-3_600, 7_200),
        pytest.param((3_600, -7_200), marks=pytest.mark.long),
        pytest.param((10**9, -(10**9)), marks=pytest.mark.long),
    ],
)
async def test_no_step_of_the_clock_changes_what_goes(journal, log, monkeypatch, steps):
    """The oldest of the log go, in its order, whatever their times."""
    ahead = 0.0
    monkeypatch.setattr(
        transaction, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + int(ahead * 1e9))
    )
    for step in (0, *steps):
        ahead += step
        await log.add(130)
    await log.settled()
    assert disk(journal.path.parent) <= LIMIT
    with journal.reader() as reader:
        first = reader.first()
        assert journal.usage.pruned == first - 1 > 250
        assert [row.id for row in reader.batches(0, limit=1000)] == list(range(first, 391))


async def test_large_batches_go_a_few_at_a_time(tmp_path, source, monkeypatch):
    """One deletion reads a limited number of bytes, and the log stays within its limit."""
    monkeypatch.setattr(Budget, "transaction", 50_000)
    steps = []
    oldest = retention.Retention._oldest

    def noted(*args: Any) -> Any:
        steps.append(found := oldest(*args))
        return found

    monkeypatch.setattr(retention.Retention, "_oldest", noted)
    log = Log(journal := Journal.open(tmp_path / "state", limit=LIMIT), source)
    await log.add(200)
    await log.settled()
    assert disk(journal.path.parent) <= LIMIT
    await journal.close()
    # Up to 100 kB, and the one that went over it; a batch has more than 15 of them.
    assert max(len(numbers) - 1 for numbers in steps) * 15_000 < 100_000
    assert max(len(numbers) for numbers in steps) > 1


async def test_what_the_metrics_have_not_counted_stays(journal, log):
    """With nothing to delete the log is full and wants the metrics' state; after that save it is trimmed."""
    with pytest.raises(FullError, match=r"its limit is reached, see --state-limit\); retry later") as caught:
        await log.add(400, folded=False)
    assert "journal cannot be written" in str(caught.value)
    async with asyncio.timeout(60):
        while not journal.wants_metrics_state:  # noqa: ASYNC110  (the writer's thread looks again whether anything may go)
            await asyncio.sleep(0.001)
    assert "--state-limit" in journal.error
    assert disk(journal.path.parent) <= LIMIT
    with journal.reader() as reader:
        assert (reader.first(), reader.last()) == (1, log.seq)
    journal.save_metrics_state(log.seq, b"fold")
    await log.settled()
    await log.add(50)
    assert not journal.wants_metrics_state
    assert (journal.error, journal.watermark(log.source.epoch)) == ("", log.seq)


async def test_traces_that_were_not_delivered_are_given_up_last_and_counted(journal, log, tmp_path):
    """While the backend is away the oldest traces are dropped and counted, over restarts; metrics lose nothing."""
    await log.add(30)
    await log.add(370, exported=False)
    await log.settled()
    with journal.reader() as reader:
        first = reader.first()
        assert reader.last() == 400
    assert first > 31
    assert (journal.usage.pruned, journal.usage.unexported) == (first - 1, first - 31)
    await journal.close()
    again = Journal.open(tmp_path / "state", limit=LIMIT)
    assert (again.usage.pruned, again.usage.unexported) == (first - 1, first - 31)
    await again.close()


async def test_a_wait_that_is_older_than_the_log_is_forgotten(journal, source, log):
    """An open deferral is deleted with the batch that opened it."""
    waiter = Source(epoch=9, key=EngineKey("", "1"), process="engine-core")
    batch = Batch(epoch=9, seq=1, events=[deferral_start("a")])
    await journal.append(waiter, batch, batch.SerializeToString())
    log.seq = 0
    with journal.reader() as reader:
        assert reader.open_deferrals(9)[1] == 1
        await log.add(300)
        await log.settled()
        assert reader.open_deferrals(9) == ([], 0)


async def test_a_lower_limit_gives_the_disk_back(tmp_path, source):
    """After a start with a lower limit commits bring the files below it."""
    journal = Journal.open(tmp_path, limit=4 * LIMIT)
    log = Log(journal, source)
    await log.add(200)
    await journal.close()
    assert disk(tmp_path) > 1.5 * LIMIT
    log.journal = journal = Journal.open(tmp_path, limit=LIMIT)
    await log.add(5)
    await log.settled()
    assert journal.path.stat().st_size <= LIMIT
    await journal.close()
    assert disk(tmp_path) <= LIMIT


async def test_a_step_gives_back_all_of_its_pages(tmp_path, source, monkeypatch):
    """What is free goes a thousand pages a step, and not one: SQLite itself does a page each time it is asked."""
    await Journal.open(tmp_path, limit=8 * LIMIT).close()
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE junk (x)")
        database.executemany("INSERT INTO junk VALUES (zeroblob(?))", [(MIB,)] * 10)
        database.execute("DROP TABLE junk")
        (free,) = database.execute("PRAGMA freelist_count").fetchone()
    given_back = []
    step = retention.Retention.step

    def noted(self: retention.Retention, *args: int) -> bool:
        before = self._number("PRAGMA page_count")
        more = step(self, *args)
        given_back.append(before - self._number("PRAGMA page_count"))
        return more

    monkeypatch.setattr(retention.Retention, "step", noted)
    log = Log(journal := Journal.open(tmp_path, limit=LIMIT), source)
    await log.add()
    await log.settled()
    await journal.close()
    steps = [pages for pages in given_back if pages > 0]
    assert free > 2 * retention._PAGES_A_STEP
    assert len(steps) == -(-free // retention._PAGES_A_STEP)
    assert min(steps[:-1]) >= retention._PAGES_A_STEP
    assert disk(tmp_path) <= LIMIT


async def test_ended_sources_are_forgotten_when_nothing_is_left_of_them(journal, source, log, monkeypatch):
    """Of closed sources without batches the newest are kept; open sources always."""
    monkeypatch.setattr(retention, "MAX_CLOSED_SOURCES", 3)
    monkeypatch.setattr(retention, "_SOURCES_A_CHECK", 1)
    epochs = range(1, 31)
    for epoch in epochs:
        ended = Source(epoch=epoch, key=EngineKey("", "1"), process="worker")
        await journal.open_source(ended)
        if epoch != 5:
            batch = Batch(epoch=epoch, seq=1, goodbye=Goodbye(reason="exit"))
            await journal.append(ended, batch, batch.SerializeToString())
    with journal.reader() as reader:
        assert len(reader.sources()) == 30
        await log.add(300)
        await journal.open_source(Source(epoch=99, key=EngineKey("", "1"), process="worker"))
        await log.settled()
        assert [row.epoch for row in reader.sources()] == [5, 28, 29, 30, source.epoch, 99]
    assert journal.watermark(27) == 0
    assert journal.watermark(30) == 1


async def test_ended_sources_have_a_share_of_the_disk(journal, log, monkeypatch):
    """The newest are kept, within a share of the limit in bytes."""
    monkeypatch.setattr(retention, "_SOURCES_A_CHECK", 1)
    monkeypatch.setattr(retention, "_SHARE_OF_CLOSED", LIMIT // 3000)
    for epoch in range(1, 31):
        ended = Source(epoch=epoch, key=EngineKey("", "1"), process="worker", labels={"x": "y" * 900})
        await journal.open_source(ended)
        batch = Batch(epoch=epoch, seq=1, goodbye=Goodbye(reason="exit"))
        await journal.append(ended, batch, batch.SerializeToString())
    with journal.reader() as reader:
        await log.add(300)
        await journal.open_source(Source(epoch=99, key=EngineKey("", "1"), process="worker"))
        await log.settled()
        assert [row.epoch for row in reader.sources() if row.epoch < 99] == [28, 29, 30]


async def test_archives_share_the_limit(tmp_path):
    """Journals of earlier pods are deleted, oldest first, above half of the limit."""
    for number, size in ((1, LIMIT // 4), (2, LIMIT // 3), (3, LIMIT // 4)):
        (tmp_path / f"journal-{number}.db").write_bytes(bytes(size))
    journal = Journal.open(tmp_path, limit=LIMIT)
    assert sorted(path.name for path in tmp_path.glob("journal-*")) == ["journal-3.db"]
    assert journal.usage.limit_bytes < LIMIT * 3 // 4
    await journal.close()


@pytest.mark.parametrize("limit", [budget.MIN_LIMIT, budget.DEFAULT_LIMIT, 1 << 40])
def test_the_shares_add_up(limit, monkeypatch):
    """Database, write-ahead log and reserve are the limit; trimming begins before the end."""
    monkeypatch.undo()
    shares = Budget(limit)
    assert shares.full + shares.wal + shares.reserve == limit
    assert shares.full * 0.8 < shares.high < shares.stop < shares.full
    # What one transaction and its indexes add stays below what the write-ahead log may have.
    assert shares.checkpoint_pages * 4096 + 3 * shares.transaction <= shares.wal


async def test_counters_lose_nothing_of_what_was_deleted(tmp_path, source):
    """Over several crashes at the limit every acknowledged event is counted once."""
    sent = 0
    for life in range(6):
        journal = Journal.open(tmp_path, limit=LIMIT)
        keeper = AggregatorCheckpoint(journal, aggregator := Aggregator())
        await keeper.restore()
        log = Log(journal, source)
        log.seq = await journal.open_source(source)
        assert log.seq == sent
        for batch in range(60):
            await log.add(folded=False)
            if batch % 25 == life:
                keeper.save()
        sent += 60
        await log.settled()
        counted = sum(
            row.total for engine in aggregator.engines() for row in engine.rows.get(TRANSFER_FAILURES, ())
        )
        assert counted == sent * EVENTS
        await journal.close()
    assert journal.usage.pruned > 100


async def test_a_batch_that_cannot_be_read_is_deleted_all_the_same(journal, source, log):
    """An unreadable batch does not stop the trimming."""
    await journal.append(source, Batch(epoch=source.epoch, seq=1), b"\xff" * 1000)
    log.seq = 1
    await log.add(300)
    await log.settled()
    assert journal.usage.pruned > 100
    assert journal.error == ""
