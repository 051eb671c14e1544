"""Files of the journal that are removed or replaced while it is open."""

from __future__ import annotations

import asyncio
import threading

import pytest
from penstock.agent.errors import FullError, StateError, TakenError
from penstock.agent.journal.journal import Journal
from penstock.agent.journal.query.reader import Reader
from penstock.agent.state.directory import StateDirectory
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import transfer_failure
from tests.support.agent.removed_files import HARMS, the_directory, the_file


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Own a state directory; a journal in it looks at its files before it writes, not in the middle of a harm."""
    monkeypatch.setattr("penstock.agent.journal.commit.writer._CHECK_SECONDS", 60)
    place = StateDirectory(tmp_path / "state", 256 << 20)
    yield place
    place.release()


class Gate:
    """Holds the writer back until the test has changed the files."""

    def __init__(self, place: StateDirectory) -> None:
        self._place = place
        self.closed = False

    def __call__(self) -> None:
        """Claim it."""
        if self.closed:
            raise StateError("the gate is closed")
        self._place.claim()


async def append(journal, source, *numbers):
    """Append batches with an event each."""
    for seq in numbers:
        batch = Batch(epoch=source.epoch, seq=seq, events=[transfer_failure(f"r{seq}")])
        assert await journal.append(source, batch, batch.SerializeToString()) == seq


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_it_is_put_back(place, source, harm):
    """All acknowledged batches are at the path before the next acknowledgement; open readers continue."""
    gate = Gate(place)
    journal = Journal.open(place.path, claim=gate)
    path = journal.path
    with journal.reader() as follower:
        await append(journal, source, 1, 2)
        assert follower.last() == 2
        gate.closed = True
        harm(path)
        gate.closed = False
        await append(journal, source, 3)
        with Reader(path) as reader:
            assert [row.seq for row in reader.batches(0)] == [1, 2, 3]
        await append(journal, source, 4)
        assert [row.seq for row in follower.batches(2)] == [3, 4]
    assert journal.whereabouts.restored == 1
    assert "while the agent ran; the agent restored it at" in journal.whereabouts.notice
    assert (journal.error, journal.damage) == ("", "")
    journal.save_metrics_state(4, b"fold")
    await journal.close()
    # The last connection has folded the write-ahead log in: none of the old ones is left over.
    assert not path.with_name("journal.db-wal").exists()
    assert len(list(place.path.glob("state.corrupt-*"))) == HARMS[harm]
    journal = Journal.open(place.path)
    assert journal.load_metrics_state() == (4, b"fold")
    assert await journal.open_source(source) == 4
    await journal.close()


async def test_again_and_again(place, source):
    """Each removal during traffic is repaired."""
    journal = Journal.open(place.path, claim=place.claim)
    for seq in range(1, 11):
        the_file(journal.path)
        await append(journal, source, seq)
    with journal.reader() as reader:
        assert [row.seq for row in reader.batches(0)] == list(range(1, 11))
    assert journal.whereabouts.restored == 10
    await journal.close()


async def test_at_any_moment(place, source):
    """Removals during the repair itself: at the end all acknowledged batches are there, once each."""
    journal = Journal.open(place.path, claim=place.claim)
    ending = threading.Event()

    def remove() -> None:
        while not ending.is_set():
            for path in place.path.glob("journal.db*"):
                path.unlink(missing_ok=True)

    removing = threading.Thread(target=remove)
    removing.start()
    acknowledged = 0
    try:
        for _ in range(30):
            try:
                await append(journal, source, acknowledged + 1)
            except FullError:
                continue
            acknowledged += 1
    finally:
        ending.set()
        removing.join()
    await append(journal, source, acknowledged + 1)
    with journal.reader() as reader:
        assert [row.seq for row in reader.batches(0, limit=1000)] == list(range(1, acknowledged + 2))
    assert journal.damage == ""
    await journal.close()
    assert not list(place.path.glob("state.corrupt-*"))


async def test_by_itself(place, source, monkeypatch):
    """A removed file is restored without an append."""
    monkeypatch.setattr("penstock.agent.journal.commit.writer._CHECK_SECONDS", 0.01)
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
    """A reader is refused while the file is missing: it would open another file."""
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)
    monkeypatch.setattr(journal._writer, "_settle", lambda database: database)
    the_file(journal.path)
    with pytest.raises(
        StateError, match=r"journal\.db was removed while the agent ran and is being restored"
    ):
        journal.reader()
    await journal.close()


async def test_it_cannot_be_put_back(place, source, monkeypatch):
    """While the repair fails no batch is acknowledged and the error has the cause; later it succeeds by itself."""
    monkeypatch.setattr("penstock.agent.journal.commit.writer._PROBE_SECONDS", 0.01)
    gate = Gate(place)
    journal = Journal.open(place.path, claim=gate)
    await append(journal, source, 1)
    gate.closed = True
    the_directory(journal.path)
    journal.save_metrics_state(1, b"fold")
    for _ in range(2):
        with pytest.raises(
            FullError, match=r"journal\.db was removed .* and cannot be restored: the gate is closed"
        ):
            await append(journal, source, 2)
    assert "cannot be restored" in journal.error
    gate.closed = False
    async with asyncio.timeout(60):
        while journal.error:  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    await append(journal, source, 2)
    await journal.close()
    journal = Journal.open(place.path)
    assert (journal.load_metrics_state(), await journal.open_source(source)) == ((1, b"fold"), 2)
    await journal.close()


async def test_the_copy_cannot_be_opened_at_once(place, source, monkeypatch):
    """A copy that could not be opened is opened at the next attempt, not written again."""
    journal = Journal.open(place.path, claim=place.claim)
    await append(journal, source, 1)

    def failing(_path):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(journal.whereabouts, "_reopen", failing)
        the_file(journal.path)
        with pytest.raises(FullError, match="cannot be restored: no room"):
            await append(journal, source, 2)
        there = journal.path.stat().st_ino
    await append(journal, source, 2)
    assert journal.path.stat().st_ino == there
    await journal.close()


async def test_another_agent_has_the_place(place, source):
    """The files of the agent that took the directory are unchanged."""
    gate = Gate(place)
    journal = Journal.open(place.path, claim=gate)
    await append(journal, source, 1)
    gate.closed = True
    the_directory(journal.path)
    other = StateDirectory(place.path, place.limit)
    gate.closed = False
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
