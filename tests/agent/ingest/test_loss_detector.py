"""Sources that go away without a goodbye."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.errors import FullError
from penstock.agent.ingest import loss_detector
from penstock.agent.ingest.loss_detector import LossDetector, ServerStops, loss_batch
from penstock.agent.journal.agent_log import agent_source
from penstock.agent.journal.query.reader import Reader
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.common_pb2 import DEFERRAL_ENDING_ENGINE_LOST

from tests.support.agent.agent import short_directory, wait_until
from tests.support.agent.batches import TIME, deferral_end, deferral_start, event, transfer_failure
from tests.support.agent.consistency import check_counts
from tests.support.agent.ingest import running_ingest
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.ingest_pb2 import Batch


@pytest.fixture
def hasty():
    """Serve Ingest with hardly any grace."""
    with short_directory() as directory, running_ingest(directory, grace=0.02) as harness:
        yield harness


def own_batches(ingest):
    """Return what the agent itself has logged: (source, batch)."""
    return [(source, batch) for _, source, batch in list(ingest.committed) if source.process == "agent"]


def test_the_agents_source_is_one_for_each_engine():
    """The same after a restart, another for another engine or another state."""
    key = EngineKey("s", "0")
    assert agent_source(1, key) == agent_source(1, key)
    epochs = {
        agent_source(*pair).epoch
        for pair in ((1, key), (2, key), (1, EngineKey("s0", "")), (1, EngineKey("", "s0")))
    }
    assert len(epochs) == 4
    assert 0 not in epochs


def test_a_loss_ends_what_was_open():
    """Each deferral ends when the source was last seen, but never before it began; then the loss itself."""
    source = Source(epoch=9, key=EngineKey("", "0"), process="engine-core")
    starts = [deferral_start("a", time_ns=5), deferral_start("b", time_ns=50)]
    batch = loss_batch(source, 3, 4, starts, open_deferrals=7, last_seen=10, now=99)
    first, second, lost = batch.events
    assert (batch.epoch, batch.seq) == (3, 4)
    assert (first.request_id, first.time_unix_nano, second.time_unix_nano) == ("a", 10, 50)
    end = first.deferral_end
    assert (end.ending, end.start_time_unix_nano) == (DEFERRAL_ENDING_ENGINE_LOST, 5)
    assert (end.reason, end.channel, end.peer) == (
        starts[0].deferral_start.reason,
        starts[0].deferral_start.channel,
        starts[0].deferral_start.peer,
    )
    assert lost.time_unix_nano == 99
    assert (lost.source_lost.epoch, lost.source_lost.process) == (9, "engine-core")
    assert (lost.source_lost.last_seen_unix_nano, lost.source_lost.open_deferrals) == (10, 7)


def test_a_source_that_stays_away_is_lost(hasty):
    """The log says so once, under the engine's key, and what was open is closed."""
    with FakeEngine(hasty.address, engine="7") as engine:
        engine.publish(deferral_start("open"), deferral_start("done"), deferral_end("done"))
    wait_until(lambda: own_batches(hasty), "the loss is in the log")
    ((source, batch),) = own_batches(hasty)
    assert source.key == EngineKey("", "7")
    assert [event.WhichOneof("body") for event in batch.events] == ["deferral_end", "source_lost"]
    assert batch.events[0].request_id == "open"
    with hasty.journal.reader() as reader:
        assert reader.open_deferrals(engine.epoch) == ([], 0)
        assert [row.closed for row in reader.source_rows() if row.source.epoch == engine.epoch] == [True]
    with FakeEngine(hasty.address, engine="7"):
        pass
    wait_until(lambda: len(own_batches(hasty)) == 2, "the second loss is in the log")
    assert [batch.seq for _, batch in own_batches(hasty)] == [1, 2]


async def test_grace(monkeypatch):
    """It is the option's, and what the caller adds, from now on."""
    waits = []

    async def wait(_watch: LossDetector, _source: Source, _last_seen: int, grace: float) -> None:
        waits.append(grace)

    monkeypatch.setattr(LossDetector, "_wait", wait)
    watch = LossDetector(Mock(), 3600)
    watch.away(Source(epoch=1, key=EngineKey("", "0"), process="worker"))
    watch.away(Source(epoch=2, key=EngineKey("", "0"), process="worker"), 1, more=5)
    await asyncio.gather(*watch._waiting.values())
    assert waits == [3600, 3605]


def test_a_source_that_comes_back_too_late_ends_nothing_twice(hasty):
    """The agent has ended its deferral, and then its own end comes: one deferral, counted once."""
    engine = FakeEngine(hasty.address)
    engine.connect()
    engine.publish(deferral_start("open", time_ns=TIME))
    engine.disconnect()
    wait_until(lambda: own_batches(hasty), "the loss is in the log")
    engine.connect()
    engine.publish(deferral_end("open", start_ns=TIME, time_ns=TIME + 1))
    aggregator = Aggregator()
    # On the loop: a batch is counted right after its acknowledgement has left.
    for _, source, batch in hasty.call(list, hasty.committed):
        aggregator.apply(source, BatchColumns(batch))
    engine.goodbye()
    events = [event for _, _, batch in hasty.call(list, hasty.committed) for event in batch.events]
    assert sum(event.HasField("deferral_end") for event in events) == 2
    check_counts(aggregator, events)


def test_a_source_that_comes_back_in_time_is_not_lost(ingest):
    """A reconnect calls the wait off, so does a goodbye."""
    engine = FakeEngine(ingest.address)
    engine.connect()
    engine.publish(transfer_failure("a"))
    engine.disconnect()
    wait_until(lambda: engine.epoch in ingest.losses._waiting, "the wait has begun")
    engine.connect()
    assert ingest.losses._waiting == {}
    engine.goodbye()
    wait_until(lambda: not ingest.call(ingest.registry.get, engine.epoch).connected, "it is away")
    assert ingest.losses._waiting == {}
    assert own_batches(ingest) == []


def test_a_loss_is_written_when_the_disk_has_room_again(hasty, monkeypatch):
    """The first attempt fails; it is not forgotten."""
    monkeypatch.setattr(loss_detector, "_RETRY_SECONDS", 0.01)
    append, failures = hasty.journal.append, iter([True, False])

    async def full_once(source: Source, batch: Batch, body: bytes) -> int:
        if source.process == "agent" and next(failures):
            raise FullError("no room")
        return await append(source, batch, body)

    monkeypatch.setattr(hasty.journal, "append", full_once)
    with FakeEngine(hasty.address):
        pass
    wait_until(lambda: own_batches(hasty), "the loss is in the log")
    assert next(failures, None) is None


def test_a_loss_is_written_when_the_log_can_be_read_again(hasty, monkeypatch):
    """A disk that fails a read ends neither the wait nor the watch."""
    monkeypatch.setattr(loss_detector, "_RETRY_SECONDS", 0.01)
    is_open, failures = Reader.is_open, iter([True, False])

    def broken_once(reader: Reader, epoch: int) -> bool:
        if next(failures):
            raise sqlite3.OperationalError("disk I/O error")
        return is_open(reader, epoch)

    monkeypatch.setattr(Reader, "is_open", broken_once)
    with FakeEngine(hasty.address):
        pass
    wait_until(lambda: own_batches(hasty), "the loss is in the log")
    assert next(failures, None) is None


def test_a_source_that_did_not_wait_for_its_goodbyes_acknowledgement_is_not_lost(ingest):
    """Its stream broke off, but the log has its goodbye."""
    engine = FakeEngine(ingest.address)
    engine.connect()
    source = ingest.call(ingest.registry.get, engine.epoch).source
    engine.goodbye()
    wait_until(lambda: not ingest.call(ingest.registry.get, engine.epoch).connected, "it is away")
    ingest.run(ingest.losses._lose(source, 1))
    assert own_batches(ingest) == []


def test_a_source_that_comes_back_is_not_lost_while_its_hello_waits_for_the_disk(hasty, monkeypatch):
    """The wait ends before that of the disk begins: a loss in between would close the source that is here."""
    engine = FakeEngine(hasty.address)
    waiting_at_open = []
    open_source = hasty.journal.open_source

    async def watched(source: Source) -> int:
        if source.process != "agent":
            waiting_at_open.append(engine.epoch in hasty.losses._waiting)
        return await open_source(source)

    monkeypatch.setattr(hasty.losses, "_grace", 30.0)
    monkeypatch.setattr(hasty.journal, "open_source", watched)
    engine.connect()
    engine.disconnect()
    wait_until(lambda: engine.epoch in hasty.losses._waiting, "the wait has begun")
    engine.connect()
    engine.disconnect()
    assert waiting_at_open == [False, False]


def test_a_greeting_shows_what_the_state_has_lost(ingest):
    """Entries that were acknowledged and are not in the log are counted there, by reason, once for an epoch."""
    with FakeEngine(ingest.address) as engine:
        engine.publish(transfer_failure("a"), transfers=["a", "b"])
    assert own_batches(ingest) == []
    engine.hello.acknowledged, engine.hello.acknowledged_entries = 5, 10
    for _ in range(2):
        assert engine.connect() == 1
        engine.disconnect()
    wait_until(lambda: own_batches(ingest), "the loss in the log")
    ((source, batch),) = own_batches(ingest)
    assert (source.key.engine, len(batch.drops)) == ("0", 1)
    (drop,) = batch.drops
    assert (drop.reason, drop.count) == (loss_detector.STATE_LOST, 7)


def test_a_greeting_that_shows_no_loss(ingest):
    """What is acknowledged is there, or the last acknowledgement was lost on the way."""
    with FakeEngine(ingest.address) as engine:
        engine.publish(transfer_failure("a"))
        engine.publish(transfer_failure("b"))
    for acknowledged in (2, 1, 0):
        engine.hello.acknowledged, engine.hello.acknowledged_entries = acknowledged, acknowledged
        engine.connect()
        engine.disconnect()
    assert own_batches(ingest) == []


def test_lost_entries_are_written_once_though_the_stream_ends_meanwhile(hasty, monkeypatch):
    """The engine connects again before the log has the first: one drop, and one number in the agent's own counter."""
    append, reached, go_on = hasty.journal.append, asyncio.Event(), asyncio.Event()

    async def slow(source: Source, batch: Batch, body: bytes) -> int:
        # The writer has it, whatever becomes of the caller.
        written = asyncio.ensure_future(append(source, batch, body))
        reached.set()
        await go_on.wait()
        return await written

    monkeypatch.setattr(hasty.journal, "append", slow)
    lost = Source(epoch=5, key=EngineKey("", "0"), process="worker")

    async def connect_twice() -> None:
        first = asyncio.ensure_future(hasty.losses.forgotten(lost, 7))
        await reached.wait()
        first.cancel()
        second = asyncio.ensure_future(hasty.losses.forgotten(lost, 7))
        go_on.set()
        await asyncio.gather(first, second, return_exceptions=True)

    hasty.run(connect_twice())
    ((_, batch),) = own_batches(hasty)
    assert [(drop.reason, drop.count) for drop in batch.drops] == [(loss_detector.STATE_LOST, 7)]
    assert hasty.losses.entries_lost == 7


def server_stopping(**fields: Any) -> Event:
    """Build what a front end says when its server stops."""
    return event("server_stopping", time_ns=time.time_ns(), **fields)


def said_goodbye(ingest, engine):
    """Return whether the registry says that the source has stopped."""
    return ingest.call(ingest.registry.get, engine.epoch).said_goodbye


@pytest.mark.parametrize("announced_first", [True, False], ids=["announced-first", "vanished-first"])
def test_a_source_of_a_server_that_stops_has_stopped(ingest, announced_first):
    """Its connection ends before the announcement or after it: no loss, and nothing that was open is ended as lost."""
    core, front = (
        FakeEngine(ingest.address, server="s"),
        FakeEngine(ingest.address, server="s", process="api", engine=""),
    )
    core.connect()
    front.connect()
    core.publish(deferral_start("open"))
    source = ingest.call(ingest.registry.get, core.epoch).source
    steps = [lambda: front.publish(server_stopping()), core.disconnect]
    for step in steps if announced_first else reversed(steps):
        step()
        wait_until(lambda: core._channel or ingest.losses.is_awaited(core.epoch), "its stream has ended")
    # What is shown does not wait for the grace time.
    wait_until(lambda: said_goodbye(ingest, core), "it is shown as stopped")
    ingest.run(ingest.losses._lose(source, 1))
    ((_, batch),) = own_batches(ingest)
    assert [each.WhichOneof("body") for each in batch.events] == ["source_stopped"]
    assert batch.events[0].source_stopped.process == "engine-core"
    with ingest.journal.reader() as reader:
        (row,) = (row for row in reader.source_rows() if row.source.epoch == core.epoch)
        assert row.closed
        assert reader.ends_with_goodbye(row)
        assert reader.open_deferrals(core.epoch) == ([], 0)
    front.goodbye()


def test_a_stop_is_of_one_life_of_one_server(ingest):
    """Another server's process is lost, and so is one that began after the announcement."""
    front = FakeEngine(ingest.address, server="s", process="api", engine="")
    front.connect()
    front.publish(server_stopping())
    front.goodbye()
    others = [FakeEngine(ingest.address, server="other"), FakeEngine(ingest.address, server="s", engine="1")]
    for each in others:
        each.connect()
        source = ingest.call(ingest.registry.get, each.epoch).source
        each.disconnect()
        wait_until(lambda each=each: ingest.losses.is_awaited(each.epoch), "its stream has ended")
        assert not said_goodbye(ingest, each)
        ingest.run(ingest.losses._lose(source, 1))
    kinds = [each.WhichOneof("body") for _, batch in own_batches(ingest) for each in batch.events]
    assert kinds == ["source_lost", "source_lost"]


def test_the_goodbye_of_the_last_front_end_announces_a_stop(ingest):
    """An engine part that announces nothing: what is here when its last API process says goodbye stops with it."""
    core = FakeEngine(ingest.address, server="s")
    fronts = [FakeEngine(ingest.address, server="s", process="api", engine="") for _ in range(2)]
    for each in (core, *fronts):
        each.connect()
    source = ingest.call(ingest.registry.get, core.epoch).source
    fronts[0].goodbye()
    assert not ingest.losses.stops.covers(source)
    fronts[1].goodbye()
    core.disconnect()
    wait_until(lambda: said_goodbye(ingest, core), "it is shown as stopped")


def test_a_front_end_that_ends_because_its_engine_died_announces_nothing(ingest):
    """Its goodbye comes after the loss: vLLM's API server ends by itself when its EngineCore is dead."""
    core, worker = (
        FakeEngine(ingest.address, server="s"),
        FakeEngine(ingest.address, server="s", process="worker"),
    )
    front = FakeEngine(ingest.address, server="s", process="api", engine="")
    for each in (core, worker, front):
        each.connect()
    source = ingest.call(ingest.registry.get, core.epoch).source
    core.disconnect()
    wait_until(lambda: ingest.losses.is_awaited(core.epoch), "its stream has ended")
    front.goodbye()
    worker.disconnect()
    assert not said_goodbye(ingest, core)
    ingest.run(ingest.losses._lose(source, 1))
    ((_, batch),) = own_batches(ingest)
    assert [each.WhichOneof("body") for each in batch.events] == ["source_lost"]


def test_a_source_that_comes_back_after_its_stop_was_announced_is_connected(ingest):
    """It drains, and its connection broke meanwhile."""
    core, front = (
        FakeEngine(ingest.address, server="s"),
        FakeEngine(ingest.address, server="s", process="api", engine=""),
    )
    core.connect()
    front.connect()
    front.publish(server_stopping(timeout_nano=30 * 10**9))
    core.disconnect()
    wait_until(lambda: said_goodbye(ingest, core), "it is shown as stopped")
    core.connect()
    live = ingest.call(ingest.registry.get, core.epoch)
    assert live.connected
    assert not live.said_goodbye
    core.goodbye()
    front.goodbye()
    assert own_batches(ingest) == []


@pytest.mark.parametrize(
    ("began", "said", "received", "covered"),
    [
        (5, 5, 9, True),
        (6, 5, 9, False),
        # A clock that is ahead excuses no later life.
        (10, 99, 9, False),
        (9, 99, 9, True),
        # The beginning is not known.
        (0, 5, 9, False),
    ],
)
def test_what_an_announcement_is_about(began, said, received, covered):
    """The processes that began before it; by the agent's clock where the engine's is ahead of it."""
    stops = ServerStops()
    stops.announce("s", said, received)
    stops.announce("s", 1, 9)
    source = Source(epoch=1, key=EngineKey("s", "0"), process="worker", start_time_unix_nano=began)
    assert stops.covers(source) is covered


def test_as_many_announcements_as_there_may_be_servers():
    """The first is forgotten."""
    stops = ServerStops()
    for number in range(1_025):
        stops.announce(str(number), 5, 5)
    covered = [
        stops.covers(Source(epoch=1, key=EngineKey(name, "0"), process="worker", start_time_unix_nano=1))
        for name in ("0", "1", "1024")
    ]
    assert covered == [False, True, True]
