"""Files of the journal that are removed or replaced while it is open."""

from __future__ import annotations

import asyncio

import pytest
from penstock.agent.errors import FullError, StateError, TakenError
from penstock.agent.journal import Journal
from penstock.agent.journal.reader import Reader
from penstock.agent.statedir import StateDirectory
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.batches import transfer_failure
from tests.support.removed_files import HARMS, the_directory, the_file


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Own a state directory; a journal in it looks at its files before it writes, not in the middle of a harm."""
    monkeypatch.setattr("penstock.agent.journal.writer._LOOK_SECONDS", 60)
    place = StateDirectory(tmp_path / "state", 256 << 20)
    yield place
    place.release()


async def append(journal, source, *numbers):
    """Append batches with an event each."""
    for seq in numbers:
        batch = Batch(epoch=source.epoch, seq=seq, events=[transfer_failure(f"r{seq}")])
        assert await journal.append(source, batch, batch.SerializeToString()) == seq


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_it_is_put_back(place, source, harm):
    """All that was ever acknowledged is at its path again before the next batch is; who follows the log goes on."""
    journal = Journal.open(place.path, claim=place.claim)
    path = journal.path
    with journal.reader() as follower:
        await append(journal, source, 1, 2)
        assert follower.last() == 2
        harm(path)
        await append(journal, source, 3)
        with Reader(path) as reader:
            assert [row.seq for row in reader.batches(0)] == [1, 2, 3]
        await append(journal, source, 4)
        assert [row.seq for row in follower.batches(2)] == [3, 4]
    assert journal.whereabouts.restored == 1
    assert "while the agent ran; the agent wrote it again at" in journal.whereabouts.notice
    assert (journal.error, journal.damage) == ("", "")
    journal.save_fold(4, b"fold")
    await journal.close()
    # The last connection has folded the write-ahead log in: none of the old ones is left over.
    assert not path.with_name("journal.db-wal").exists()
    assert len(list(place.path.glob("state.corrupt-*"))) == HARMS[harm]
    journal = Journal.open(place.path)
    assert journal.load_fold() == (4, b"fold")
    assert await journal.open_source(source) == 4
    await journal.close()


async def test_again_and_again(place, source):
    """Each time, in the middle of traffic."""
    journal = Journal.open(place.path, claim=place.claim)
    for seq in range(1, 11):
        the_file(journal.path)
        await append(journal, source, seq)
    with journal.reader() as reader:
        assert [row.seq for row in reader.batches(0)] == list(range(1, 11))
    assert journal.whereabouts.restored == 10
    await journal.close()


async def test_by_itself(place, source, monkeypatch):
    """Without anybody who writes; who asks in between is asked to wait."""
    monkeypatch.setattr("penstock.agent.journal.writer._LOOK_SECONDS", 0.01)
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)
    the_file(journal.path)
    async with asyncio.timeout(60):
        while not journal.whereabouts.restored:  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    with Reader(journal.path) as reader:
        assert reader.last() == 1
    await journal.close()


async def test_no_reader_begins_while_it_is_gone(place, source, monkeypatch):
    """It would find nothing, or begin the shared memory of another file that is still in use."""
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)
    monkeypatch.setattr(journal._writer, "_settle", lambda database: database)
    the_file(journal.path)
    with pytest.raises(
        StateError, match=r"journal\.db was removed while the agent ran; ask again in a second"
    ):
        journal.reader()
    await journal.close()


async def test_it_cannot_be_put_back(place, source, monkeypatch):
    """Nothing is acknowledged, the error says why, and it goes on by itself once it can."""
    monkeypatch.setattr("penstock.agent.journal.writer._PROBE_SECONDS", 0.01)
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)
    journal.save_fold(1, b"fold")
    the_directory(journal.path)
    place.path.touch()
    for _ in range(2):
        with pytest.raises(
            FullError, match=r"journal\.db was removed .* and cannot be put back: the state dir"
        ):
            await append(journal, source, 2)
    assert "cannot be put back" in journal.error
    place.path.unlink()
    async with asyncio.timeout(60):
        while journal.error:  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    await append(journal, source, 2)
    await journal.close()
    journal = Journal.open(place.path)
    assert (journal.load_fold(), await journal.open_source(source)) == ((1, b"fold"), 2)
    await journal.close()


async def test_the_copy_cannot_be_opened_at_once(place, source, monkeypatch):
    """It is not copied again: the one that is there is opened the next time."""
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)
    connect, failures = journal._reopen, iter([True, False])

    def failing(path):
        if next(failures):
            raise OSError("no room")
        return connect(path)

    monkeypatch.setattr(journal.whereabouts, "_reopen", failing)
    monkeypatch.setattr("penstock.agent.journal.writer._PROBE_SECONDS", 60)
    the_file(journal.path)
    with pytest.raises(FullError, match="cannot be put back: no room"):
        await append(journal, source, 2)
    there = journal.path.stat().st_ino
    await append(journal, source, 2)
    assert journal.path.stat().st_ino == there
    await journal.close()


async def test_another_agent_has_the_place(place, source):
    """Its files stay as they are."""
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)
    the_directory(journal.path)
    other = StateDirectory(place.path, place.limit)
    theirs = Journal.open(other.path, claim=other.claim)
    before = sorted((path.name, path.stat().st_ino) for path in other.path.iterdir())
    with pytest.raises(FullError, match="another penstock-agent owns --state-dir"):
        await append(journal, source, 2)
    with pytest.raises(TakenError):
        place.claim()
    assert sorted((path.name, path.stat().st_ino) for path in other.path.iterdir()) == before
    await append(theirs, source, 1)
    await journal.close()
    await theirs.close()
    other.release()
