"""The service Ingest over real gRPC."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.errors import ContractError, FullError, GapError, LimitError, StateError
from penstock.agent.ingest.admission import Admission
from penstock.agent.ingest.service import _reason
from penstock.agent.model import EngineKey
from penstock.proto.v1.ingest_pb2 import Batch, Drop, Goodbye
from penstock.proto.v1.ingest_pb2_grpc import IngestStub
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest import running_ingest
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from penstock.agent.model import Source


def seqs(ingest):
    """Return the numbers in the log."""
    with ingest.journal.reader() as reader:
        return [row.seq for row in reader.batches(0)]


def test_a_greeting_then_acknowledgements_after_the_commit(ingest):
    """The watermark is 0 for a new epoch, and then that of each batch, which is in the log by then."""
    with FakeEngine(ingest.address) as engine:
        assert engine.acknowledged == 0
        for seq in (1, 2, 3):
            assert engine.publish(transfer_failure(f"r{seq}"), transfers=["t"]) == seq
            assert seqs(ingest) == list(range(1, seq + 1))
        wait_until(lambda: len(ingest.acks) == 3, "the latencies are observed")


def test_the_acknowledgement_leaves_before_the_batch_is_counted(ingest):
    """While the loop counts a batch, its sender has the acknowledgement already."""
    acknowledged = threading.Event()
    waited: list[bool] = []
    ingest.journal.on_commit(lambda *_: waited.append(acknowledged.wait(60)))
    with FakeEngine(ingest.address) as engine:
        engine.publish(transfer_failure("r"))
        acknowledged.set()
        assert ingest.call(list, waited) == [True]


def test_the_body_is_logged_as_it_came(ingest):
    """Byte for byte, fields of a newer engine included."""
    with FakeEngine(ingest.address) as engine:
        body = Batch(epoch=engine.epoch, seq=1, events=[transfer_failure("r")]).SerializeToString()
        unknown = b"\xfa\x7f\x03new"
        engine.send(Batch.FromString(body + unknown))
        engine.wait(lambda: engine.acknowledged == 1, "the acknowledgement")
    with ingest.journal.reader() as reader:
        assert unknown in reader.batches(0)[0].body


def test_after_a_reconnect_the_sender_resumes_at_the_watermark(ingest):
    """What was committed is not taken twice, what was not is."""
    engine = FakeEngine(ingest.address)
    engine.connect()
    engine.publish(transfer_failure("a"))
    batch = Batch(epoch=engine.epoch, seq=2, events=[transfer_failure("b")])
    engine.disconnect()
    engine.sent, engine.unacknowledged = 2, {2: batch}
    assert engine.connect() == 1
    assert engine.acknowledged == 2
    assert engine.connect() == 2
    engine.send(batch)
    engine.publish(transfer_failure("c"))
    engine.disconnect()
    assert seqs(ingest) == [1, 2, 3]
    assert [number for number, _, _ in ingest.call(list, ingest.committed)] == [1, 2, 3]


def test_a_newer_stream_of_a_source_aborts_the_older(ingest):
    """An engine that reconnects before its old stream is seen to have died is not kept waiting."""
    with FakeEngine(ingest.address) as old:
        old.publish(transfer_failure("a"))
        with FakeEngine(ingest.address, epoch=old.epoch) as new:
            assert old.failure() is grpc.StatusCode.ABORTED
            new.sent = 1
            assert new.publish(transfer_failure("b")) == 2
            assert ingest.call(ingest.registry.get, old.epoch).connected


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (Batch(seq=3), grpc.StatusCode.FAILED_PRECONDITION),
        (Batch(seq=1, epoch=77), grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(seq=1, strings=["x" * 2000]), grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(drops=[Drop(count=1)]), grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(seq=1, strings=["x" * (1 << 20)]), grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(seq=1, strings=["x" * (3 << 20)]), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_a_message_that_is_wrong_ends_the_stream(ingest, batch, code):
    """With the status of the contract; the log keeps what was there, and the next stream works."""
    with FakeEngine(ingest.address) as engine:
        wrong = Batch()
        wrong.CopyFrom(batch)
        wrong.epoch = wrong.epoch or engine.epoch
        engine.send(wrong)
        assert engine.failure() is code
        engine.connect()
        assert engine.publish(transfer_failure("r")) == 1
    assert seqs(ingest) == [1]


def counts(ingest, name):
    """Return the values of all series of a counter of the agent's own."""
    return [
        sample.value
        for metric in ingest.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == name
    ]


@pytest.mark.parametrize(
    ("end", "refused", "broken"),
    [
        (lambda engine: engine.goodbye(), 0, 0),
        (lambda engine: engine.disconnect(), 0, 1),
        (lambda engine: (engine.send(Batch(epoch=engine.epoch, seq=9)), engine.failure()), 1, 0),
        # gRPC ends the call by itself, and tells the handler no more than that it is over.
        (lambda engine: (engine.send(Batch(strings=["x" * (3 << 20)])), engine.failure()), 0, 1),
    ],
    ids=["goodbye", "gone", "refused", "refused by gRPC"],
)
def test_each_end_of_a_stream_is_counted_once(ingest, end, refused, broken):
    """What gRPC refuses shows among the streams that broke off."""
    with FakeEngine(ingest.address) as engine:
        engine.publish(transfer_failure("r"))
        end(engine)
        wait_until(
            lambda: not ingest.call(ingest.registry.get, engine.epoch).connected, "the stream has ended"
        )
        assert sum(counts(ingest, "penstock_agent_refused_messages_total")) == refused
        assert counts(ingest, "penstock_agent_broken_streams_total") == [broken]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"", grpc.StatusCode.FAILED_PRECONDITION),
        (Batch(epoch=1, seq=1).SerializeToString(), grpc.StatusCode.FAILED_PRECONDITION),
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(hello={"schema_version": 1, "process": "api"}).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(epoch=1, hello={"schema_version": 9, "process": "api"}).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
        (Batch(epoch=1, seq=1, hello={"schema_version": 1, "process": "api"}).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
        (None, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)  # fmt: skip
def test_a_stream_begins_with_a_hello(ingest, first, code):
    """Anything else is refused, bytes that are no message included."""
    with grpc.insecure_channel(ingest.address) as channel:
        stream: Any = channel.stream_stream("/penstock.v1.Ingest/Publish")
        call = stream(iter([] if first is None else [first]), timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is code
    assert ingest.call(ingest.registry.sources) == []


def test_a_second_hello_is_refused(ingest):
    """One stream, one source."""
    with FakeEngine(ingest.address) as engine:
        engine.send(Batch(epoch=engine.epoch, hello=engine.hello))
        assert engine.failure() is grpc.StatusCode.INVALID_ARGUMENT


def test_snapshots_are_kept_in_memory_only(ingest):
    """Neither logged nor acknowledged; the last one holds until the stream ends."""
    with FakeEngine(ingest.address) as engine:
        for time in (1, 2):
            engine.snapshot(Snapshot(time_unix_nano=time))
        engine.publish(transfer_failure("r"))
        assert ingest.call(ingest.registry.get, engine.epoch).snapshot.time_unix_nano == 2
    wait_until(
        lambda: ingest.call(ingest.registry.get, engine.epoch).snapshot is None, "the snapshot has gone"
    )
    assert seqs(ingest) == [1]


def test_a_pause_reaches_a_stream_that_is_idle(ingest):
    """The agent sends an acknowledgement on its own, with the watermark that stands; others hear nothing."""
    with FakeEngine(ingest.address, engine="0") as engine, FakeEngine(ingest.address, engine="1") as other:
        engine.publish(transfer_failure("r"))
        ingest.call(ingest.pauses.set, {EngineKey("", "0")})
        engine.wait(lambda: engine.paused, "the pause")
        assert engine.acknowledged == 1
        ingest.call(ingest.pauses.set, set())
        engine.wait(lambda: not engine.paused, "the resumption")
        other.publish(transfer_failure("r"))
        assert len(other._acks) == 2


def test_a_snapshot_from_before_a_change_of_the_kill_switch_says_nothing_about_it(ingest):
    """Of a pause that follows a resumption at once, the snapshot of the pause before is no proof."""
    key = {EngineKey("", "0")}
    with FakeEngine(ingest.address, engine="0") as engine:
        ingest.call(ingest.pauses.set, key)
        engine.wait(lambda: engine.paused, "the pause")
        engine.snapshot(Snapshot(paused=True))
        wait_until(lambda: ingest.call(ingest.registry.get, engine.epoch).snapshot, "the snapshot")
        assert not ingest.call(ingest.registry.get, engine.epoch).kill_switch_unread
        ingest.call(ingest.pauses.set, set())
        ingest.call(ingest.pauses.set, key)
        assert ingest.call(ingest.registry.get, engine.epoch).kill_switch_unread
        engine.snapshot(Snapshot(paused=True))
        wait_until(
            lambda: not ingest.call(ingest.registry.get, engine.epoch).kill_switch_unread, "the next snapshot"
        )


def test_the_greeting_says_that_an_engine_is_paused(ingest):
    """So that it never becomes active."""
    ingest.call(ingest.pauses.set, {EngineKey("", "0")})
    with FakeEngine(ingest.address) as engine:
        assert engine.paused


def test_a_pause_during_a_greeting_is_in_the_greeting(monkeypatch):
    """After a restart the watermark is not known before the source is opened: nothing is acknowledged before that."""
    with short_directory() as directory:
        with running_ingest(directory) as before, FakeEngine(before.address) as engine:
            engine.publish(transfer_failure("r"))
        with running_ingest(directory) as ingest:
            opened = ingest.journal.open_source

            async def open_slowly(source: Source) -> int:
                ingest.pauses.set({EngineKey("", "0")})
                await asyncio.sleep(0.1)
                return await opened(source)

            monkeypatch.setattr(ingest.journal, "open_source", open_slowly)
            assert engine.connect() == 1
            assert [(ack.durable_watermark, ack.paused) for ack in engine._acks] == [(1, True)]
            engine.disconnect()


def test_a_goodbye_closes_the_source(ingest):
    """A goodbye is acknowledged and ends the wait for its source."""
    with FakeEngine(ingest.address) as engine:
        engine.goodbye()
    wait_until(lambda: not ingest.call(ingest.registry.get, engine.epoch).connected, "it is away")
    with ingest.journal.reader() as reader:
        assert [row.closed for row in reader.source_rows()] == [True]
    assert ingest.losses._waiting == {}


def test_the_sender_learns_of_a_full_journal(ingest, monkeypatch):
    """RESOURCE_EXHAUSTED: later, not never."""

    async def full(*_, **__):
        raise FullError("the disk is full; try again later")

    with FakeEngine(ingest.address) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(ingest.journal, "append", full)
            with pytest.raises(grpc.RpcError, match="the disk is full") as caught:
                engine.publish(transfer_failure("r"))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        engine.connect()
        assert engine.acknowledged == 1


def test_too_many_streams_are_refused(ingest, monkeypatch):
    """Before anything of them is read."""
    monkeypatch.setattr("penstock.agent.ingest.admission.MAX_STREAMS", 1)
    with FakeEngine(ingest.address):
        other = FakeEngine(ingest.address)
        with pytest.raises(grpc.RpcError, match="1 sources are connected"):
            other.connect()
        other.disconnect()


def test_too_many_engines_are_refused(ingest, monkeypatch):
    """A client that makes up names; engines that are known come in, and what was refused is counted by its reason."""
    refused: list[str] = []
    monkeypatch.setattr("penstock.agent.ingest.admission.MAX_ENGINES", 1)
    monkeypatch.setattr(ingest.service, "_count_refused", refused.append)
    with FakeEngine(ingest.address):
        other = FakeEngine(ingest.address, engine="1")
        with pytest.raises(grpc.RpcError, match="1 engines are known and '1' is none of them") as caught:
            other.connect()
        other.disconnect()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with FakeEngine(ingest.address) as again:
            assert again.publish(transfer_failure("r")) == 1
    assert refused == ["engines"]


def test_without_memory_nothing_is_taken(ingest, monkeypatch):
    """Batches and streams are refused with a retryable error, so that the sender keeps them."""
    with FakeEngine(ingest.address) as engine:
        engine.publish(transfer_failure("a"))
        monkeypatch.setattr(ingest.service, "_admission", Admission(memory_limit=1))
        for attempt in (lambda: engine.publish(transfer_failure("b")), engine.connect):
            with pytest.raises(grpc.RpcError, match="its limit is 0 MiB") as caught:
                attempt()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        monkeypatch.setattr(ingest.service, "_admission", Admission())
        assert engine.connect() == 1
    assert seqs(ingest) == [1, 2]


def test_a_hello_counts_as_memory_too(ingest, monkeypatch):
    """It may have as many bytes as any message, and a snapshot with it."""
    monkeypatch.setattr("penstock.agent.ingest.admission._MEMORY_LOOK_BYTES", 1)
    # At the stream's beginning there is room; the next look is for the Hello.
    used = iter([0])
    admission = Admission(
        memory_limit=1, clock=lambda: 0.0, resident=lambda: next(used, 2), relieve=lambda: None
    )
    monkeypatch.setattr(ingest.service, "_admission", admission)
    engine = FakeEngine(ingest.address)
    with pytest.raises(grpc.RpcError, match="its limit is 0 MiB"):
        engine.connect()
    engine.disconnect()


def test_a_source_that_floods_waits(ingest, monkeypatch):
    """Above its rate the next message is read later; another source does not notice."""
    monkeypatch.setattr("penstock.agent.ingest.service.SOURCE_BYTES_PER_SECOND", 0.001)
    monkeypatch.setattr("penstock.agent.ingest.service.SOURCE_BURST_BYTES", 100)
    with FakeEngine(ingest.address, engine="0") as flood, FakeEngine(ingest.address, engine="1") as other:
        flood.publish(transfer_failure("r" * 200))
        flood.send(Batch(epoch=flood.epoch, seq=2, events=[transfer_failure("late")]))
        other.publish()
        other.publish()
        assert flood.acknowledged == 1
    assert seqs(ingest) == [1, 1, 2]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ContractError("x"), "invalid"),
        (GapError("x"), "out_of_order"),
        (FullError("x"), "journal"),
        (LimitError("x", "memory"), "memory"),
        (StateError("x"), "error"),
    ],
)
def test_reasons_of_refusals(error, word):
    """Each error has one word in the metrics."""
    assert _reason(error) == word


def test_a_silent_stream_is_ended(ingest, monkeypatch):
    """Who never says hello holds nothing for long."""
    monkeypatch.setattr("penstock.agent.ingest.service._PEER_DEADLINE", 0.05)
    with grpc.insecure_channel(ingest.address) as channel:
        stop = FakeEngine(ingest.address)._outgoing
        call = IngestStub(channel).Publish(iter(stop.get, None), timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        stop.put(None)


def test_a_drain_ends_streams_and_takes_no_new_ones(ingest):
    """UNAVAILABLE: the sender comes back by itself."""
    with FakeEngine(ingest.address) as engine:
        engine.publish(transfer_failure("r"))
        ingest.run(ingest.service.drain(5))
        assert engine.failure() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError, match="stopping"):
            engine.connect()
    assert ingest.losses._waiting == {}


def test_goodbye_after_a_reconnect_closes_too(ingest):
    """A goodbye that was committed but not acknowledged comes again as a duplicate."""
    engine = FakeEngine(ingest.address)
    engine.connect()
    engine.goodbye()
    assert engine.connect() == 1
    engine.send(Batch(epoch=engine.epoch, seq=1, goodbye=Goodbye(reason="exit")))
    engine.wait(lambda: len(engine._acks) == 2, "the acknowledgement")
    with ingest.journal.reader() as reader:
        assert [row.closed for row in reader.source_rows()] == [True]
    engine.disconnect()
    assert seqs(ingest) == [1]
