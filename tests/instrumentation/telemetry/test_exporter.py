"""Delivery: the exporter against an agent's double on a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.telemetry import exporter
from penstock.proto.constants import ROLE_DECODE

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure, emit_probe, emit_transfer
from tests.support.engine.runtime_threads import exporter_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.runtime import Runtime
    from penstock.proto.v1.ingest_pb2 import Batch

    from tests.support.agent.fake_agent import FakeAgent


def ids(agent: FakeAgent) -> list[str]:
    """Return the request ids of all committed entries, sorted."""
    return sorted(request_id for _, request_id in agent.received.entries())


def test_entries_of_every_kind_arrive(agent: FakeAgent, runtime: Runtime) -> None:
    """An event, a transfer and a probe are committed with what they say."""
    emit_failure(runtime, "r-1")
    emit_transfer(runtime, "r-2")
    emit_probe(runtime, "r-3")
    agent.wait(lambda: len(agent.received.entries()) == 3, "three entries")
    assert sorted(agent.received.entries()) == [
        ("probe_sample", "r-3"),
        ("transfer_failure", "r-1"),
        ("transfer_sample", "r-2"),
    ]
    batch = next(batch for batch in agent.received.batches() if batch.events)
    assert batch.events[0].transfer_failure.peer.address == "10.0.0.7:5600"


def test_first_message_is_the_hello(agent: FakeAgent, make_runtime: Callable[..., Runtime]) -> None:
    """The Hello names the process; labels of the environment give the role."""
    runtime = make_runtime(server="left", labels={"role": "decode", "tier": "gold"})
    runtime.identify(process="engine-core", key="1", role="prefill", model="tiny", vllm_version="0.32.0")
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    epoch, hello = agent.received.hellos[0]
    assert epoch == runtime.session.epoch
    assert (hello.key.server, hello.key.engine, hello.process) == ("left", "1", "engine-core")
    assert (hello.role, hello.role_guessed, dict(hello.labels)) == (
        ROLE_DECODE,
        False,
        {"role": "decode", "tier": "gold"},
    )


def test_order_is_kept_over_many_batches(agent: FakeAgent, runtime: Runtime) -> None:
    """More entries than a batch holds arrive once each, in order."""
    for number in range(3_000):
        emit_failure(runtime, f"r-{number:04}")
    agent.wait(lambda: len(agent.received.entries()) >= 3_000, "3000 entries")
    assert [request_id for _, request_id in agent.received.entries()] == [f"r-{n:04}" for n in range(3_000)]
    assert [batch.seq for batch in agent.received.batches()] == list(
        range(1, len(agent.received.batches()) + 1)
    )


@pytest.mark.usefixtures("quick_reconnects")
def test_resend_after_a_lost_acknowledgement(agent: FakeAgent, runtime: Runtime) -> None:
    """A batch that was committed but not acknowledged is not counted twice, one that was not is resent."""
    lost = iter([True, True, False])
    agent.lose_ack = lambda _: next(lost, False)
    for number in range(5):
        emit_failure(runtime, f"r-{number}")
        agent.wait(lambda want=number: len(agent.received.entries()) > want, f"entry {number}")
    assert ids(agent) == [f"r-{number}" for number in range(5)]


def test_agent_dies_and_returns(agent: FakeAgent, runtime: Runtime) -> None:
    """What is emitted while the agent is away is delivered when it is back."""
    emit_failure(runtime, "before")
    agent.wait(lambda: ids(agent) == ["before"], "the first")
    agent.stop()
    emit_failure(runtime, "meanwhile")
    agent.start()
    agent.wait(lambda: ids(agent) == ["before", "meanwhile"], "the second")


@pytest.mark.usefixtures("quick_reconnects")
def test_reconnect_storm(agent: FakeAgent, runtime: Runtime) -> None:
    """An agent that ends its streams all the time gets every entry once."""
    for number in range(40):
        emit_failure(runtime, f"r-{number:02}")
        if number % 4 == 0:
            agent.drop_streams()
        agent.wait(lambda want=number: len(agent.received.entries()) > want, f"entry {number}")
    assert ids(agent) == [f"r-{number:02}" for number in range(40)]
    assert len(agent.received.log) == 1


def test_refusing_agent_is_not_hammered(agent: FakeAgent, runtime: Runtime) -> None:
    """Attempts are spread by the back-off when every stream ends at once."""
    agent.verdict = lambda _: grpc.StatusCode.UNAVAILABLE
    emit_failure(runtime, "r-1")
    agent.wait(lambda: agent.streams >= 3, "three attempts")
    assert agent.streams < 10
    agent.verdict = lambda _: None
    agent.wait(lambda: ids(agent) == ["r-1"], "the entry")


@pytest.mark.usefixtures("quick_reconnects")
def test_mute_agent_is_given_up(agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without an answer within the deadline is sent again on another stream."""
    monkeypatch.setattr(exporter, "ANSWER_DEADLINE", 0.2)
    emit_failure(runtime, "r-1")
    agent.wait(lambda: ids(agent) == ["r-1"], "the first")
    agent.mute = True
    emit_failure(runtime, "r-2")
    streams = agent.streams
    agent.wait(lambda: agent.streams > streams, "another stream")
    agent.mute = False
    emit_failure(runtime, "r-3")
    agent.wait(lambda: ids(agent) == ["r-1", "r-2", "r-3"], "all")


def test_agent_that_lost_its_state_gets_a_new_epoch(agent: FakeAgent, runtime: Runtime) -> None:
    """A watermark behind what was acknowledged begins a new life from number 1."""
    emit_failure(runtime, "old")
    wait_until(lambda: acknowledged(runtime), "the first is acknowledged")
    first = runtime.session.epoch
    agent.stop()
    agent.received = type(agent.received)()
    emit_failure(runtime, "new")
    agent.start()
    agent.wait(lambda: ids(agent) == ["new"], "the entry in the new state")
    assert runtime.session.epoch != first
    assert {epoch: [batch.seq for batch in log] for epoch, log in agent.received.log.items()} == {
        runtime.session.epoch: [1]
    }


@pytest.mark.usefixtures("quick_reconnects")
def test_rejected_batch_becomes_a_tombstone(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the agent calls invalid is given up with an account, and the next one goes through."""
    monkeypatch.setattr(guard, "raising", False)

    def poisoned(batch: Batch) -> grpc.StatusCode | None:
        bad = any(event.request_id == "poison" for event in batch.events)
        return grpc.StatusCode.INVALID_ARGUMENT if bad else None

    agent.verdict = poisoned
    emit_failure(runtime, "poison")
    agent.wait(lambda: agent.received.lost() == {("rejected", "transfer_failure"): 1}, "the tombstone")
    emit_failure(runtime, "good")
    agent.wait(lambda: ids(agent) == ["good"], "the next")
    agent.wait(
        lambda: ("exporter.rejected", "RejectedError") in agent.received.guard_errors(), "the guard's count"
    )
    assert runtime.emitter.queued() == 0


@pytest.mark.usefixtures("quick_reconnects")
def test_rejected_snapshot_costs_no_batch(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that refuses snapshots still gets every batch."""
    monkeypatch.setattr(guard, "raising", False)
    agent.verdict = lambda batch: grpc.StatusCode.INVALID_ARGUMENT if batch.HasField("snapshot") else None
    for number in range(5):
        emit_failure(runtime, f"r-{number}")
        agent.wait(lambda want=number: len(agent.received.entries()) > want, f"entry {number}")
    assert ids(agent) == [f"r-{number}" for number in range(5)]
    assert agent.received.lost() == {}


@pytest.mark.usefixtures("quick_reconnects")
@pytest.mark.parametrize("entries", [0, 1], ids=["alone", "beside-a-batch"])
def test_rejected_snapshot_is_not_tried_at_every_turn(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """After a snapshot that the agent refuses the stream stays up without them, and batches flow on it."""
    monkeypatch.setattr(guard, "raising", False)
    refused = []

    def picky(batch: Batch) -> grpc.StatusCode | None:
        if not batch.HasField("snapshot"):
            return None
        refused.append(batch)
        return grpc.StatusCode.INVALID_ARGUMENT

    agent.verdict = picky
    for number in range(entries):
        emit_failure(runtime, f"r-{number}")
    runtime.start()
    wait_until(
        lambda: exporter_of(runtime)._snapshots._earliest and exporter_of(runtime)._greeted,
        "a stream after that",
    )
    streams = agent.streams
    for number in range(5):
        emit_failure(runtime, f"s-{number}")
        agent.wait(lambda want=number: f"s-{want}" in ids(agent), f"entry {number}")
    assert agent.streams == streams
    assert len(refused) <= 2
    assert agent.received.lost() == {}


def test_flush_waits_until_the_agent_has_it(agent: FakeAgent, runtime: Runtime) -> None:
    """After it, what was emitted before is committed; a second one has nothing to wait for."""
    emit_failure(runtime, "first")
    agent.wait(lambda: ids(agent) == ["first"], "the link")
    for number in range(700):
        emit_failure(runtime, f"r-{number:03}")
    runtime.flush(60.0)
    assert len(agent.received.entries()) == 701
    runtime.flush(60.0)


def test_flush_without_an_agent_waits_for_nothing(make_runtime: Callable[..., Runtime]) -> None:
    """With a deadline of an hour it returns at once without an agent, and where nothing was emitted."""
    runtime = make_runtime()
    runtime.flush(3600.0)
    emit_failure(runtime, "r")
    runtime.flush(3600.0)
    assert runtime.emitter.queued() == 1
