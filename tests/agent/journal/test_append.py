"""Append, commit, watermark."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from penstock.agent.errors import FullError, GapError, StateError
from penstock.agent.journal.commit import writer
from penstock.agent.journal.journal import Journal
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.common_pb2 import DEFERRAL_REASON_GRAMMAR
from penstock.proto.v1.events_pb2 import Event, SourceLost
from penstock.proto.v1.ingest_pb2 import Batch, Goodbye

from tests.support.agent.batches import deferral_end, deferral_start, event, noise, transfer_failure


async def test_a_batch_is_there_when_append_returns(journal, source, log):
    """The log has the body unchanged at position 1, with its source."""
    assert await journal.open_source(source) == 0
    assert await log(1, transfer_failure("r")) == 1
    assert journal.watermark(source.epoch) == 1
    with journal.reader() as reader:
        (logged,) = reader.batches(0)
        assert (logged.id, logged.epoch, logged.seq) == (1, source.epoch, 1)
        assert Batch.FromString(logged.body).events[0].request_id == "r"
        assert reader.source(source.epoch) == source
        assert (reader.first(), reader.last()) == (1, 1)


async def test_a_duplicate_changes_nothing_and_a_gap_is_refused(journal, log):
    """Both leave the log unchanged; the gap's error has the watermark."""
    await log(1)
    assert await log(1, transfer_failure("other")) == 1
    with pytest.raises(GapError, match="batch 3 came after 1; resend from 2"):
        await log(3)
    with journal.reader() as reader:
        assert [Batch.FromString(logged.body).events for logged in reader.batches(0)] == [[]]
    assert await log(2) == 2


async def test_appends_that_come_together_are_committed_together(journal, source, log):
    """Concurrent appends of many sources share few transactions; each gets its own answer."""
    commits: list[Any] = []
    journal.observe_commits(commits.append)
    others = [Source(epoch=n, key=EngineKey("", str(n)), process="worker") for n in range(1, 201)]
    await asyncio.gather(*(journal.open_source(other) for other in others))
    opened = len(commits)
    # The writer cannot take anything while the test holds its condition: all of them have come.
    with journal._writer._changed:
        tasks = [asyncio.ensure_future(log(1, source=other)) for other in others]
        await asyncio.sleep(0)
        assert journal.depth == 200
    assert await asyncio.gather(*tasks) == [1] * 200
    assert len(commits) - opened < 20
    assert journal.depth == 0


async def test_commits_are_announced_once_each_in_the_order_of_the_log(journal, log):
    """Duplicates are not announced; the callback has run when append returns."""
    heard = []
    journal.on_commit(lambda batch_id, _, contents: heard.append((batch_id, contents.batch.seq)))
    await log(1)
    assert heard == [(1, 1)]
    await log(1)
    await asyncio.gather(*(log(seq) for seq in range(2, 30)))
    assert heard == [(seq, seq) for seq in range(1, 30)]


async def test_an_append_ahead_returns_before_the_callbacks(journal, source):
    """They follow in the same turn of the loop; other appends wait for them."""
    heard: list[int] = []
    journal.on_commit(lambda _id, _source, contents: heard.append(contents.batch.seq))

    async def append(seq: int, *, ahead: bool) -> list[int]:
        batch = Batch(epoch=source.epoch, seq=seq)
        assert await journal.append(source, batch, batch.SerializeToString(), ahead=ahead) == seq
        return heard.copy()

    assert await append(1, ahead=True) == []
    await asyncio.sleep(0)
    assert heard == [1]
    assert await append(2, ahead=False) == [1, 2]


async def test_the_order_of_the_calls_is_the_order_of_the_log(journal, log):
    """Also of the first ones of a source, between which the writer has a turn."""
    opened = threading.Event()
    journal.observe_commits(lambda _: opened.set())
    first = asyncio.ensure_future(log(1))
    await asyncio.sleep(0)  # it is queued now
    assert opened.wait(60)  # and its source committed, while the loop stands still
    rest = [log(2), first, log(3)]
    assert await asyncio.gather(*rest) == [2, 1, 3]


async def test_a_commit_is_announced_though_its_sender_has_gone(journal, source):
    """A batch whose append is cancelled after the commit is announced."""
    await journal.open_source(source)
    announced = asyncio.Event()
    journal.on_commit(lambda *_: announced.set())
    batch = Batch(epoch=source.epoch, seq=1)
    task = asyncio.ensure_future(journal.append(source, batch, b""))
    await asyncio.sleep(0)  # it is queued now
    task.cancel()
    await asyncio.wait_for(announced.wait(), 60)
    assert task.cancelled()
    assert journal.watermark(source.epoch) == 1


async def test_a_failing_callback_does_not_cost_the_acknowledgement(journal, log):
    """A batch is acknowledged although a callback raises."""

    def fail(*_):
        raise RuntimeError("bug")

    heard = []
    journal.on_commit(fail)
    journal.on_commit(lambda batch_id, *_: heard.append(batch_id))
    assert await log(1) == 1
    assert heard == [1]


async def test_what_waits_is_bounded(journal, source, log, monkeypatch):
    """Beyond the limit an append fails with FullError; all accepted batches are committed."""
    await journal.open_source(source)
    monkeypatch.setattr(writer, "MAX_QUEUED", 2)
    # The writer cannot take anything while the test holds its condition (an RLock, so this thread can still put).
    with journal._writer._changed:
        tasks = [asyncio.ensure_future(log(seq)) for seq in (1, 2, 3)]
        await asyncio.sleep(0)
        assert journal.depth == 2
        with pytest.raises(FullError, match="2 batches wait for the disk; retry later"):
            await tasks[2]
    assert await asyncio.gather(*tasks[:2]) == [1, 2]
    assert await log(3) == 3


async def test_a_full_disk_is_an_error_that_passes(journal, source, log):
    """While the file cannot grow no batch is acknowledged; afterwards appends continue at the watermark."""
    await log(1)
    database = journal._writer._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    big = [transfer_failure(f"r{n}", error_text=noise(1000)) for n in range(200)]
    with pytest.raises(FullError, match="database or disk is full"):
        await log(2, *big)
    assert "full" in journal.error
    assert journal.watermark(source.epoch) == 1
    database.execute("PRAGMA max_page_count = 1000000")
    assert await log(2, *big) == 2
    assert journal.error == ""


async def test_close_commits_what_is_queued(tmp_path, source):
    """Queued appends are answered; later ones fail because the journal is closed."""
    journal = Journal.open(tmp_path)
    await journal.open_source(source)
    tasks = [
        asyncio.ensure_future(journal.append(source, Batch(epoch=source.epoch, seq=seq), b""))
        for seq in (1, 2)
    ]
    await asyncio.sleep(0)
    await journal.close()
    await journal.close()
    assert await asyncio.gather(*tasks) == [1, 2]
    with pytest.raises(StateError, match="closed"):
        await journal.append(source, Batch(epoch=source.epoch, seq=3), b"")
    assert not journal.alive
    journal.save_cursor("late", 1, 1)
    with journal.reader() as reader:
        assert reader.cursor("late") == (0, 0)


async def test_fold_and_cursors_come_back(tmp_path, source, log, journal):
    """The last saved value is loaded; cursors may be saved from any thread."""
    assert journal.load_metrics_state() is None
    for number in (1, 2):
        journal.save_metrics_state(number, b"fold %d" % number)
    thread = threading.Thread(target=journal.save_cursor, args=("otlp", 3, 4))
    thread.start()
    thread.join()
    assert journal.load_metrics_state() == (2, b"fold 2")
    await log(1)
    await log(2)
    with journal.reader() as reader:
        assert reader.cursor("otlp") == (3, 4)
        assert reader.cursor("other") == (0, 0)
    await journal.close()
    again = Journal.open(journal.path.parent)
    assert again.load_metrics_state() == (2, b"fold 2")
    await again.close()


async def test_open_deferrals_follow_the_events(journal, source, log):
    """A start opens, its end or the end of its request closes, per source, request and reason."""
    await log(
        1,
        deferral_start("a"),
        deferral_start("a", reason=DEFERRAL_REASON_GRAMMAR),
        deferral_start("b"),
        deferral_start("c"),
        deferral_end("never-began"),
    )
    await log(2, deferral_end("a"), event("request_closed", "b"))
    with journal.reader() as reader:
        deferrals, count = reader.open_deferrals(source.epoch)
        assert [(item.start.request_id, item.start.deferral_start.reason) for item in deferrals] == [
            ("a", DEFERRAL_REASON_GRAMMAR),
            ("c", deferral_start("c").deferral_start.reason),
        ]
        assert count == 2
        some, total = reader.open_deferrals(source.epoch, limit=1)
        assert (len(some), total) == (1, 2)
        await log(3, goodbye=Goodbye(reason="exit"))
        assert reader.open_deferrals(source.epoch) == ([], 0)


@pytest.mark.parametrize("epochs", [(), (3,), (1, 5, 2**63, 2**64 - 1)])
async def test_sources_with_open_deferrals(source, log, journal, epochs):
    """Those with a deferral that has not ended, however many it has; an id of 64 bits is one in SQLite, too."""
    for epoch in epochs:
        waits = Source(epoch=epoch, key=source.key, process="engine-core")
        await log(1, *map(deferral_start, ("a", "b", "c")), source=waits)
        await log(2, deferral_end("a"), source=waits)
    await log(1, deferral_start("a"), deferral_end("a"))
    with journal.reader() as reader:
        assert reader.waiting_epochs() == set(epochs)


@pytest.mark.parametrize("waiting", [0, 3, 300])
async def test_many_waits_that_end_at_once(source, log, journal, waiting):
    """Only the ended deferrals of this source are removed, however many others are open."""
    other = Source(epoch=9, key=source.key, process="engine-core")
    mine = ("a", "b", "c")
    await log(1, *map(deferral_start, mine))
    await log(1, *map(deferral_start, (*mine, *(f"w{n}" for n in range(waiting)))), source=other)
    here = [f"h{n}" for n in range(80)]
    await log(
        2,
        *(say(name) for name in here for say in (deferral_start, deferral_end)),
        *(event("request_closed", name) for name in here),
        deferral_end("a"),
        deferral_end("c", reason=DEFERRAL_REASON_GRAMMAR),
        event("request_closed", "b"),
    )
    with journal.reader() as reader:
        assert [item.start.request_id for item in reader.open_deferrals(source.epoch)[0]] == ["c"]
        assert reader.open_deferrals(other.epoch)[1] == len(mine) + waiting


@pytest.mark.parametrize(("process", "closed"), [("agent", True), ("engine-core", False)])
async def test_only_the_agent_says_that_a_source_is_lost(journal, source, log, process, closed):
    """The agent's own batch closes the source; an engine's does not."""
    await log(1, deferral_start("a"))
    teller = Source(epoch=7, key=source.key, process=process)
    await log(1, Event(source_lost=SourceLost(epoch=source.epoch)), source=teller)
    with journal.reader() as reader:
        row = next(row for row in reader.source_rows() if row.source == source)
        assert (row.closed, row.watermark) == (closed, 1)
        assert reader.open_deferrals(source.epoch)[1] == (0 if closed else 1)
    await journal.open_source(source)
    with journal.reader() as reader:
        assert not any(row.closed for row in reader.source_rows())
