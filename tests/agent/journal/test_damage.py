"""A damaged journal is set aside, loudly, and the agent starts on a new one."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import zlib
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import FullError, StateError
from penstock.agent.journal.database import schema
from penstock.agent.journal.database.connection import journal_errors
from penstock.agent.journal.database.schema import DiskReserve
from penstock.agent.journal.journal import Journal
from penstock.agent.state.archive import DamagedError, count_damaged, is_damage, trim_archive
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import noise, transfer_failure

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.model import Source


async def write(directory: Path, source: Source, count: int = 50, **options) -> None:
    """Fill a journal and close it."""
    journal = Journal.open(directory, **options)
    await asyncio.gather(
        *(
            journal.append(source, batch := batch_of(source, seq), batch.SerializeToString())
            for seq in range(1, count + 1)
        )
    )
    journal.save_metrics_state(count, b"fold")
    await journal.close()


def batch_of(source: Source, seq: int) -> Batch:
    """Return a batch of some kilobytes."""
    return Batch(epoch=source.epoch, seq=seq, events=[transfer_failure(f"r{seq}", error_text="x" * 4000)])


def overwrite(path: Path, start: int, end: int | None = None) -> None:
    """Put noise over a part of a file."""
    size = path.stat().st_size if end is None else end
    with path.open("r+b") as file:
        file.seek(start)
        file.write(os.urandom(size - start))


def foreign(path: Path) -> None:
    """Write something that is no database."""
    path.write_bytes(b"not a database at all" * 100)


@pytest.mark.parametrize(
    "harm",
    [
        foreign,
        lambda path: os.truncate(path, 0),
        lambda path: overwrite(path, 0),
        lambda path: overwrite(path, 100),
    ],
)
async def test_a_damaged_journal_is_set_aside(tmp_path, source, harm):
    """All its files are moved; the new journal has a new creation time, so that counters show a reset."""
    await write(tmp_path, source)
    first = Journal.open(tmp_path)
    await first.close()
    harm(tmp_path / "journal.db")
    journal = Journal.open(tmp_path)
    assert journal.created_unix_nano > first.created_unix_nano
    assert journal.agent_epoch != first.agent_epoch
    assert journal.load_metrics_state() is None
    assert await journal.open_source(source) == 0
    await journal.close()
    (place,) = tmp_path.glob("state.corrupt-*")
    assert (place / "journal.db").exists()
    assert oct(place.stat().st_mode & 0o777) == "0o700"
    assert count_damaged(tmp_path) == {"journal": 1, "policy": 0}


async def test_a_first_start_that_was_interrupted_is_no_damage(tmp_path, source):
    """An empty database file opens, also after the journal of another pod was archived."""
    (tmp_path / "journal.db").touch()
    await write(tmp_path, source, pod_uid="a")
    (tmp_path / "journal.db").rename(tmp_path / "journal-1.db")
    schema._make_private(tmp_path / "journal.db")
    await (Journal.open(tmp_path, pod_uid="b")).close()
    assert count_damaged(tmp_path) == {"journal": 0, "policy": 0}


async def test_damage_that_shows_late(tmp_path, source):
    """Damage found after the start stops appends; the next start repairs it."""
    await write(tmp_path, source, 200)
    path = tmp_path / "journal.db"
    database = sqlite3.connect(path)
    (root,) = database.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'batches_received'"
    ).fetchone()
    database.close()
    overwrite(path, (root - 1) * 4096, root * 4096)
    journal = Journal.open(tmp_path)
    batch = batch_of(source, 201)
    with pytest.raises(FullError, match="malformed"):
        await journal.append(source, batch, batch.SerializeToString())
    assert "the journal is damaged (database disk image is malformed)" in journal.damage
    await journal.close()
    again = Journal.open(tmp_path)
    assert again.damage == ""
    assert await again.open_source(source) == 200
    assert again.lost_batches == 0
    assert count_damaged(tmp_path)["journal"] == 1
    await again.close()
    third = Journal.open(tmp_path)
    assert third.created_unix_nano == again.created_unix_nano
    await third.close()


def test_only_damage_is_damage():
    """A locked or missing file is not treated as damaged."""
    assert not is_damage(sqlite3.OperationalError("database is locked"))
    assert not is_damage(OSError("no"))


def test_what_is_not_ours_is_left_alone(tmp_path):
    """Files with similar names are not trimmed."""
    (tmp_path / "journal-notes.db").write_bytes(bytes(1000))
    (tmp_path / "state.corrupt-x").mkdir()
    (tmp_path / "state.corrupt-5").mkdir()
    (tmp_path / "state.corrupt-5" / "journal.db").write_bytes(bytes(1000))
    trim_archive(tmp_path, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal-notes.db", "state.corrupt-x"]


def test_a_reserve_without_a_place_is_none(tmp_path):
    """In a missing directory the reserve holds nothing and raises nothing; a release deletes its file."""
    reserve = DiskReserve(tmp_path / "nowhere" / "reserve", 4096)
    reserve.acquire()
    assert not reserve.held
    reserve = DiskReserve(tmp_path / "reserve", 4096)
    reserve.acquire()
    assert reserve.held
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 4096
    reserve.release()
    assert list(tmp_path.iterdir()) == []


async def write_noise(directory: Path, source: Source) -> Journal:
    """Fill a journal with 300 batches that take room, of which the metrics have counted 100, and close it."""
    journal = Journal.open(directory)
    for seq in range(1, 301):
        events = [transfer_failure(f"r{seq}", error_text=noise(300))]
        batch = Batch(epoch=source.epoch, seq=seq, events=events)
        await journal.append(source, batch, batch.SerializeToString())
    journal.save_metrics_state(100, zlib.compress(b"fold"))
    await journal.close()
    return journal


async def test_what_can_be_read_is_kept(tmp_path, source):
    """With one leaf page lost its batches are counted as lost; counters, watermarks and other batches are kept."""
    journal = await write_noise(tmp_path, source)
    created, epoch = journal.created_unix_nano, journal.agent_epoch
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as database:
        pages = database.execute(
            "SELECT pageno, ncell FROM dbstat WHERE name = 'batches' AND pagetype = 'leaf'"
        )
        (page, cells), *_ = pages.fetchall()[9:]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))
    journal = Journal.open(tmp_path)
    with pytest.raises(sqlite3.DatabaseError), journal.reader() as reader:
        reader.batches(0, 1_000)
    assert "malformed" in journal.damage
    await journal.close()
    journal = Journal.open(tmp_path)
    assert (journal.created_unix_nano, journal.agent_epoch) == (created, epoch)
    assert journal.load_metrics_state() == (100, zlib.compress(b"fold"))
    assert journal.lost_batches == cells
    assert await journal.open_source(source) == 300
    with journal.reader() as reader:
        kept = reader.batches(0, 1_000)
        assert len(kept) == 300 - cells
        assert (
            [Batch.FromString(row.body).seq for row in kept]
            == [row.seq for row in kept]
            == [row.id for row in kept]
        )
        assert [row.seq for row in reader.request_batches("r300")] == [300]
        assert len(list(reader.scan(kinds=["transfer_failure"], limit=1_000))) == 300 - cells
    batch = batch_of(source, 301)
    assert await journal.append(source, batch, batch.SerializeToString()) == 301
    with journal.reader() as reader:
        assert reader.last() == 301
    await journal.close()


async def test_the_whole_half_of_a_journal_that_was_cut(tmp_path, source):
    """Batches before the cut are kept, except those with pages behind it."""
    await write_noise(tmp_path, source)
    path = tmp_path / "journal.db"
    os.truncate(path, path.stat().st_size // 2)
    journal = Journal.open(tmp_path)
    with journal.reader() as reader:
        assert len(reader.batches(0, 1_000)) > 50
    await journal.close()
    assert count_damaged(tmp_path)["journal"] == 1


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE meta SET value = NULL WHERE key = 'agent_epoch'",
        "UPDATE meta SET value = cast(x'ff' AS TEXT) WHERE key = 'created_unix_nano'",
        "UPDATE sources SET hello = x'ffff'",
        "UPDATE sources SET watermark = 'x'",
        "UPDATE folds SET batch = 1000000",
        "UPDATE folds SET batch = 'x'",
        "DELETE FROM pruned",
        "DROP TABLE kinds",
        "PRAGMA user_version = 68",
        "PRAGMA user_version = 0",
        "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = cast(x'ff00ff' AS TEXT) WHERE name = 'folds'",
        "UPDATE sqlite_sequence SET seq = 'x'",
    ],
)
async def test_what_no_agent_wrote_is_damage(tmp_path, source, harm):
    """Inconsistent rows that SQLite accepts: the agent starts, keeps the verified rows and accepts batches."""
    await write(tmp_path, source, 20)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        database.executescript(harm)
    journal = Journal.open(tmp_path)
    assert count_damaged(tmp_path)["journal"] == 1
    watermark = await journal.open_source(source)
    assert watermark in (0, 20)
    batch = batch_of(source, watermark + 1)
    assert await journal.append(source, batch, batch.SerializeToString()) == watermark + 1
    await journal.close()
    again = Journal.open(tmp_path)
    assert count_damaged(tmp_path)["journal"] == 1
    await again.close()


async def test_a_log_that_goes_in_a_circle(tmp_path, source):
    """With two pages swapped a replay ends and counts no batch twice."""
    await write_noise(tmp_path, source)
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as database:
        pages = database.execute("SELECT pageno FROM dbstat WHERE name = 'batches' AND pagetype = 'leaf'")
        one, other = (page - 1 for (page,) in pages.fetchall()[12:15:2])
    content = path.read_bytes()
    with path.open("r+b") as file:
        for to, page in ((one, other), (other, one)):
            file.seek(to * 4096)
            file.write(content[page * 4096 : (page + 1) * 4096])
    journal = Journal.open(tmp_path)
    with pytest.raises(DamagedError, match="comes after"), journal.reader() as reader:
        reader.batches(0, 1_000)
    assert "comes after" in journal.damage
    await journal.close()
    journal = Journal.open(tmp_path)
    with journal.reader() as reader:
        ids = [row.id for row in reader.batches(0, 1_000)]
    assert ids == sorted(set(ids))
    assert len(ids) + journal.lost_batches == 300
    assert len(ids) > 250
    await journal.close()


def ask(journal: Journal) -> None:
    """Query as the admin service does."""
    with journal_errors(journal.path), journal.reader() as reader:
        reader.request_batches("r150")
        list(reader.scan(limit=1_000))


@pytest.mark.parametrize("harm", ["UPDATE recent SET keys = 7", "UPDATE kinds SET batch = 'x'"])
async def test_an_index_of_something_else(tmp_path, source, harm):
    """A query of a damaged index fails with a sentence and marks it for repair at the next start."""
    await write_noise(tmp_path, source)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        # One row of it, as whole pages go.
        database.executescript(
            f"{harm} WHERE rowid = 150" if "recent" in harm else f"{harm} WHERE batch = 150"
        )
    journal = Journal.open(tmp_path)
    with pytest.raises(StateError, match="a column of"):
        ask(journal)
    await journal.close()
    journal = Journal.open(tmp_path)
    with journal.reader() as reader:
        assert [row.seq for row in reader.request_batches("r150")] == [150]
        assert len(list(reader.scan(limit=1_000))) == 300
    await journal.close()
