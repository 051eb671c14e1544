"""The aggregator's place in the log: each batch once, over all lives, whatever happens to the saved state."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import StateError
from penstock.agent.journal.journal import Journal
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.checkpoint import AggregatorCheckpoint
from penstock.agent.metrics.series import updates
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources.registry import Account
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import add_transfers, transfer_failure

if TYPE_CHECKING:
    from penstock.agent.batch.columns import BatchColumns

SOURCE = Source(epoch=7, key=EngineKey("", "0"), process="engine-core")


class ListAggregator:
    """Remembers the numbers of the batches that it was given; 13 is one that it cannot take."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.refuses = False

    def apply(self, source: Source, contents: BatchColumns) -> None:
        """Remember one, and that it came with its source."""
        assert source == SOURCE
        if contents.batch.seq == 13:
            raise RuntimeError("a bug")
        self.seqs.append(contents.batch.seq)

    def dump(self) -> bytes:
        """Return the numbers."""
        return bytes(self.seqs)

    def load(self, blob: bytes) -> None:
        """Take them over, unless told to refuse."""
        if self.refuses:
            raise StateError("another version")
        self.seqs = list(blob)


async def append(journal, *seqs):
    """Append batches with these numbers."""
    for seq in seqs:
        batch = Batch(epoch=SOURCE.epoch, seq=seq)
        await journal.append(SOURCE, batch, batch.SerializeToString())


@pytest.mark.parametrize(("refuses", "replayed"), [(False, 3), (True, 5)])
async def test_a_restart_loads_and_replays(tmp_path, refuses, replayed):
    """From the saved state on, or from the beginning if it cannot be used; the result is the same."""
    journal = Journal.open(tmp_path)
    first = AggregatorCheckpoint(journal, aggregator := ListAggregator())
    assert await first.restore() == 0
    await append(journal, 1, 2)
    first.save()
    await append(journal, 3, 4, 5)
    assert (aggregator.seqs, first.at) == ([1, 2, 3, 4, 5], 5)
    await journal.close()

    journal = Journal.open(tmp_path)
    aggregator = ListAggregator()
    aggregator.refuses = refuses
    second = AggregatorCheckpoint(journal, aggregator)
    assert await second.restore() == replayed
    assert aggregator.seqs == [1, 2, 3, 4, 5]
    await append(journal, 5, 6)
    assert (aggregator.seqs, second.at) == ([1, 2, 3, 4, 5, 6], 6)
    await journal.close()


async def test_a_replay_of_many_batches_lets_others_run(tmp_path):
    """Health answers while a long log is folded."""
    journal = Journal.open(tmp_path)
    await asyncio.gather(*(append(journal, seq) for seq in range(1, 13)), append(journal, 13))
    await asyncio.gather(*(append(journal, seq) for seq in range(14, 600)))
    keeper = AggregatorCheckpoint(journal, aggregator := ListAggregator())
    turns = []

    async def other() -> None:
        while keeper.at < 599:
            turns.append(keeper.at)
            await asyncio.sleep(0)

    await asyncio.gather(keeper.restore(), other())
    assert turns == [256, 512]
    # One batch that the aggregator cannot take costs only itself.
    assert aggregator.seqs == [*range(1, 13), *range(14, 600)]
    await journal.close()


async def test_saving_goes_on_by_itself(tmp_path, monkeypatch):
    """After so many batches the state is saved, once."""
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.SAVE_BATCHES", 2)
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.POLL_SECONDS", 0.001)
    journal = Journal.open(tmp_path)
    keeper = AggregatorCheckpoint(journal, ListAggregator())
    await keeper.restore()
    keeper.save()
    assert journal.load_metrics_state() is None
    saving = asyncio.ensure_future(keeper.keep_saving())
    await append(journal, 1, 2)
    async with asyncio.timeout(60):
        while not journal.load_metrics_state():  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    assert journal.load_metrics_state() == (2, b"\x01\x02")
    saving.cancel()
    await journal.close()


class SlowAggregator(ListAggregator):
    """Dumps only when it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def dump(self) -> bytes:
        """Return the numbers as they are at the end: nothing may have changed them meanwhile."""
        self.begun.set()
        assert self.go_on.wait(60)
        return super().dump()


@pytest.mark.parametrize("most", [1024, 2], ids=["beside", "too many wait"])
async def test_commits_go_on_while_the_state_is_dumped(tmp_path, monkeypatch, most):
    """They are applied after it, in order, and the saved state is that of one place in the log."""
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.SAVE_BATCHES", 2)
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.POLL_SECONDS", 0.001)
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.MAX_WAITING", most)
    journal = Journal.open(tmp_path)
    keeper = AggregatorCheckpoint(journal, aggregator := SlowAggregator())
    await keeper.restore()
    saving = asyncio.ensure_future(keeper.keep_saving())
    await append(journal, 1, 2)
    assert await asyncio.to_thread(aggregator.begun.wait, 60)
    await append(journal, 3)
    assert (aggregator.seqs, keeper.at) == ([1, 2], 2)
    aggregator.go_on.set()
    await append(journal, 4)
    saving.cancel()
    await asyncio.wait([saving])
    keeper.save()
    assert (aggregator.seqs, keeper.at) == ([1, 2, 3, 4], 4)
    await journal.close()

    journal = Journal.open(tmp_path)
    assert journal.load_metrics_state() == (4, b"\x01\x02\x03\x04")
    await journal.close()


async def test_a_dump_that_fails_is_tried_again(tmp_path, monkeypatch):
    """What was committed meanwhile is applied all the same."""
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.SAVE_BATCHES", 2)
    monkeypatch.setattr("penstock.agent.metrics.checkpoint.POLL_SECONDS", 0.001)
    journal = Journal.open(tmp_path)
    keeper = AggregatorCheckpoint(journal, aggregator := SlowAggregator())
    await keeper.restore()
    saving = asyncio.ensure_future(keeper.keep_saving())
    errors = iter([RuntimeError("boom")])

    def dump() -> bytes:
        aggregator.begun.set()
        assert aggregator.go_on.wait(60)
        for error in errors:
            raise error
        return bytes(aggregator.seqs)

    monkeypatch.setattr(aggregator, "dump", dump)
    await append(journal, 1, 2)
    assert await asyncio.to_thread(aggregator.begun.wait, 60)
    await append(journal, 3)
    aggregator.go_on.set()
    async with asyncio.timeout(60):
        while not keeper._saved:  # noqa: ASYNC110  (a thread)
            await asyncio.sleep(0.001)
    assert (keeper._saved, aggregator.seqs, next(errors, None)) == (3, [1, 2, 3], None)
    saving.cancel()
    await journal.close()


async def test_counters_begin_anew_where_all_of_the_log_is_gone(tmp_path):
    """A full disk may have taken all that was delivered."""
    journal = Journal.open(tmp_path)
    await append(journal, 1, 2)
    created = journal.created_unix_nano
    journal.save_metrics_state(2, b"of another version")
    await journal.close()
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("DELETE FROM batches")
    database.execute("UPDATE pruned SET batches = 2")
    database.commit()
    database.close()

    journal = Journal.open(tmp_path)
    aggregator = ListAggregator()
    aggregator.refuses = True
    assert await AggregatorCheckpoint(journal, aggregator).restore() == 0
    assert journal.created_unix_nano > created
    await journal.close()


@pytest.mark.parametrize("refuses", [False, True])
async def test_counters_that_cannot_be_whole_begin_anew(tmp_path, refuses):
    """The log's beginning was deleted: without the saved state what is left is counted, and the reset shows."""
    journal = Journal.open(tmp_path)
    first = AggregatorCheckpoint(journal, ListAggregator())
    await first.restore()
    await append(journal, 1, 2, 3)
    first.save()
    await append(journal, 4)
    created = journal.created_unix_nano
    await journal.close()
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("DELETE FROM batches WHERE id <= 2")
    database.commit()
    database.close()

    journal = Journal.open(tmp_path)
    aggregator = ListAggregator()
    aggregator.refuses = refuses
    assert await AggregatorCheckpoint(journal, aggregator).restore() == (2 if refuses else 1)
    assert aggregator.seqs == ([3, 4] if refuses else [1, 2, 3, 4])
    assert (journal.created_unix_nano > created) is refuses
    await journal.close()
    again = Journal.open(tmp_path)
    assert again.created_unix_nano == journal.created_unix_nano
    await again.close()


async def test_a_batch_that_a_bad_disk_has_spoilt(tmp_path):
    """It costs only itself: the agent starts, and the next start need not look at it again."""
    journal = Journal.open(tmp_path)
    await append(journal, 1, 2, 3)
    await journal.close()
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("UPDATE batches SET body = x'ff' WHERE seq IN (2, 3)")
    database.commit()
    database.close()

    journal = Journal.open(tmp_path)
    keeper = AggregatorCheckpoint(journal, aggregator := ListAggregator())
    assert await keeper.restore() == 3
    assert (aggregator.seqs, keeper.at) == ([1], 3)
    await append(journal, 4)
    assert aggregator.seqs == [1, 4]
    await journal.close()


@pytest.mark.parametrize("rule", ["handshake", "transfers"])
async def test_an_entry_that_cannot_be_counted(tmp_path, monkeypatch, rule, capsys):
    """A bug in one kind of entry costs those entries' series: the rest counts, over restarts, and the loss is counted."""

    def broken(*_):
        raise OverflowError("boom")

    if rule == "handshake":
        monkeypatch.setitem(updates._RULES, "handshake", broken)
    else:
        monkeypatch.setattr("penstock.agent.metrics.batch_counting.transfer_bulks", broken)
    batch = Batch(
        epoch=SOURCE.epoch, seq=1, events=[Event(handshake={}), transfer_failure("r")], strings=[""]
    )
    add_transfers(batch, "abc")
    good = Batch(epoch=SOURCE.epoch, seq=2, events=[transfer_failure("s")])
    expected = {("handshake",): 1, ("transfer_failure",): 2, ("transfer_sample",): 3}

    def counted(aggregator):
        (engine,) = aggregator.engines()
        return {row.labels: row.total for row in engine.rows[from_log.EVENTS]}, aggregator.account(
            SOURCE.epoch
        )

    journal = Journal.open(tmp_path)
    keeper = AggregatorCheckpoint(journal, aggregator := Aggregator())
    await keeper.restore()
    for each in (batch, good):
        await journal.append(SOURCE, each, each.SerializeToString())
    assert counted(aggregator) == (expected, Account(stored=6))
    assert keeper.poisoned == 1
    await journal.close()
    said = capsys.readouterr().out
    assert "a batch could not be counted; it stays in the log" in said
    kind = "handshake" if rule == "handshake" else "transfer_sample"
    assert f"1 of its entries: {kind}" in said

    # Killed before anything was saved, and after.
    for replayed, poisoned in ((2, 1), (0, 0)):
        journal = Journal.open(tmp_path)
        keeper = AggregatorCheckpoint(journal, aggregator := Aggregator())
        assert await keeper.restore() == replayed
        assert counted(aggregator) == (expected, Account(stored=6))
        assert keeper.poisoned == poisoned
        keeper.save()
        await journal.close()
