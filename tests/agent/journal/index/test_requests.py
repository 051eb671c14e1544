"""The index of requests as the log grows, moves into runs and is trimmed: it finds what the log holds."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.journal.commit.retention import Retention
from penstock.agent.journal.index import requests as request_index
from penstock.agent.journal.index.disk_format import request_ids, request_key
from penstock.agent.journal.query.reader import Reader
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import transfer_failure

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.journal.journal import Journal

RUN_KEYS = 40


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    """Let runs be small, so that a test makes many."""
    monkeypatch.setattr(request_index, "RUN_KEYS", RUN_KEYS)


def tables(path: Path) -> tuple[int, int, int]:
    """Return how many recent batches, runs and buckets there are."""
    database = sqlite3.connect(path)
    try:
        return tuple(
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("recent", "runs", "buckets")
        )
    finally:
        database.close()


def check(reader: Reader, names: set[str]) -> None:
    """Each of *names* is found in those batches of the log that name it."""
    named: dict[str, list[int]] = {name: [] for name in names}
    for logged in reader.batches(0, limit=10_000):
        batch = Batch.FromString(logged.body)
        for name in request_ids(BatchColumns(batch)):
            named.setdefault(name, []).append(logged.id)
    for name, batches in named.items():
        assert [logged.id for logged in reader.request_batches(name)] == batches
        if batches:
            before = batches[len(batches) // 2]
            assert [logged.id for logged in reader.request_batches(name, before)] == [
                number for number in batches if number < before
            ]


def settled(journal: Journal) -> None:
    """Wait until the writer has finished its upkeep."""
    wait_until(lambda: not journal._writer._trimming, "the index is in order")


async def test_it_finds_what_the_log_holds(journal, log):
    """Requests are found before and after they move into runs, by open and new readers."""
    chance = random.Random(8)
    names: set[str] = {"never"}
    with journal.reader() as staying:
        for seq in range(1, 161):
            own = [f"r{chance.randrange(60)}" for _ in range(chance.randrange(6))]
            names.update(own)
            await log(seq, *map(transfer_failure, own))
            if seq % 40 == 0:
                settled(journal)
                check(staying, names)
        with journal.reader() as coming:
            check(coming, names)
    recent, runs, buckets = tables(journal.path)
    assert 0 < recent <= RUN_KEYS
    assert runs > 5
    assert buckets > runs


async def test_a_look_up_reads_no_recent_batch_again(journal, log):
    """A thousand requests are looked up among the keys that the first look-up has read."""
    for seq in range(1, RUN_KEYS // 2):
        await log(seq, transfer_failure(f"r{seq}"))
    read: list[object] = []

    def note(_: sqlite3.Cursor, row: tuple[object, ...]) -> tuple[object, ...]:
        read.append(row)
        return row

    database = sqlite3.connect(journal.path)
    database.row_factory = note
    lookup = request_index.RequestLookup(database)
    assert not lookup.batches(request_key("never"), 1 << 62)
    assert len(read) == RUN_KEYS // 2 - 1
    for seq in range(1, RUN_KEYS // 2):
        assert len(lookup.batches(request_key(f"r{seq}"), 1 << 62)) == 1
    assert len(read) == RUN_KEYS // 2 - 1
    database.close()


async def test_what_goes_from_the_log_goes_from_the_index(journal, log):
    """Entries of trimmed batches are deleted; no query returns a missing batch."""
    names = set()
    with journal.reader() as reader:
        for seq in range(1, 101):
            names.add(f"r{seq}")
            await log(seq, transfer_failure(f"r{seq}"))
        settled(journal)
        before = tables(journal.path)
        check(reader, names)
        await journal.close()
        database = sqlite3.connect(journal.path, isolation_level=None)
        database.execute("PRAGMA wal_checkpoint")
        index = request_index.RequestIndex(database)
        trimmed = Retention(database, journal._retention._budget, index)
        for through, runs in ((39, 2), (40, 1), (79, 1), (80, 0), (90, 0)):
            trimmed._delete(through)
            check(reader, names)
            assert tables(journal.path)[1] == runs
        assert before[1] == 2
        assert tables(journal.path) == (10, 0, 0)
        assert not index.step()
        trimmed._delete(100)
        assert tables(journal.path) == (0, 0, 0)
        database.close()


async def test_batches_far_apart_are_in_different_runs(journal, log, monkeypatch):
    """A run spans a limited range of batch numbers, however few keys it has."""
    monkeypatch.setattr(request_index, "RUN_BATCHES", 10)
    names = set()
    for seq in range(1, 61):
        name = [f"r{seq}"] if seq % 7 == 0 else []
        names.update(name)
        await log(seq, *map(transfer_failure, name))
    settled(journal)
    assert tables(journal.path)[1] >= 3
    with journal.reader() as reader:
        check(reader, names)


# One life: append for ever, and say what was acknowledged.
CHILD = """
import asyncio, sys
from pathlib import Path
from penstock.agent.journal import Journal
from penstock.agent.journal.index import requests as request_index
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.ingest_pb2 import Batch
from tests.support.agent.batches import transfer_failure

request_index.RUN_KEYS = 8
source = Source(epoch=7, key=EngineKey("", "0"), process="engine-core")

async def main():
    journal = Journal.open(Path(sys.argv[1]))
    seq = await journal.open_source(source)
    print("begin", seq, flush=True)
    while True:
        batch = Batch(epoch=7, seq=seq + 1, events=[transfer_failure(f"r{seq % 50}"), transfer_failure(f"s{seq}")])
        seq = await journal.append(source, batch, batch.SerializeToString())
        print("acked", seq, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.long)])
def test_kills_while_runs_are_made(tmp_path, kills):
    """After a ``kill -9`` at any moment the index finds every request in the log."""
    chance = random.Random(9)
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            said = (line.split() for line in child.stdout if line.startswith(("begin ", "acked ")))
            for _ in range(chance.randrange(30, 60)):
                acknowledged = int(next(said)[1])
            child.send_signal(signal.SIGKILL)
        with Reader(tmp_path / "journal.db") as reader:
            assert reader.last() >= acknowledged
            check(reader, {f"s{seq}" for seq in range(acknowledged)})
    assert tables(tmp_path / "journal.db")[1] > 10
