"""The exporter against an agent's double on a real socket."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from penstock.instrumentation import exporter
from penstock.instrumentation.constants import COMPONENT_WORKER, ROLE_DECODE
from penstock.instrumentation.guard import guard
from tests.support.agent import wait_until
from tests.support.entries import emit_failure, emit_probe, emit_transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.runtime import Runtime
    from penstock.proto.v1.ingest_pb2 import Batch
    from tests.support.fake_agent import FakeAgent


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
    assert epoch == runtime.epoch
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


def test_mute_agent_is_given_up(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    agent.wait(lambda: ids(agent) == ["old"], "the first")
    first = runtime.epoch
    agent.stop()
    agent.received = type(agent.received)()
    emit_failure(runtime, "new")
    agent.start()
    agent.wait(lambda: ids(agent) == ["new"], "the entry in the new state")
    assert runtime.epoch != first
    assert {epoch: [batch.seq for batch in log] for epoch, log in agent.received.log.items()} == {
        runtime.epoch: [1]
    }


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


def test_rejected_snapshot_costs_no_batch(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that refuses snapshots still gets every batch."""
    monkeypatch.setattr(guard, "raising", False)
    agent.verdict = lambda batch: (
        grpc.StatusCode.INVALID_ARGUMENT if batch.HasField("snapshot") else None
    )
    monkeypatch.setattr("penstock.instrumentation.backoff.MAXIMUM", 0.1)
    for number in range(5):
        emit_failure(runtime, f"r-{number}")
        agent.wait(lambda want=number: len(agent.received.entries()) > want, f"entry {number}")
    assert ids(agent) == [f"r-{number}" for number in range(5)]
    assert agent.received.lost() == {}


def test_snapshots_hold_what_providers_add(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot comes on its own, with every provider's part; one that fails costs only its own."""
    monkeypatch.setattr(guard, "raising", False)

    def broken(_: object) -> None:
        raise ValueError("no")

    runtime.snapshots.add("broken", broken)
    runtime.snapshots.add("leases", lambda snapshot: setattr(snapshot.leases, "count", 3))
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    snapshot = agent.received.snapshots[-1]
    assert snapshot.leases.count == 3
    assert not snapshot.paused
    agent.wait(lambda: agent.received.guard_errors(), "the guard's count")
    assert ("snapshot.broken", "ValueError") in agent.received.guard_errors()


def test_oversize_snapshot_is_dropped_and_counted(agent: FakeAgent, runtime: Runtime) -> None:
    """A snapshot of more than a message holds is not sent; the account says so."""
    runtime.snapshots.add("big", lambda snapshot: setattr(snapshot.engine, "model", "x" * (1 << 20)))
    runtime.start()
    agent.wait(lambda: ("oversize", "snapshot") in agent.received.lost(), "the account")
    assert agent.received.snapshots == []


def test_pause_by_acknowledgement(agent: FakeAgent, runtime: Runtime) -> None:
    """The kill switch makes hooks passive, keeps what is queued, lets snapshots go on, and can be lifted."""
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    assert runtime.active
    agent.pause(paused=True)
    wait_until(lambda: not runtime.active, "hooks are passive")
    emit_failure(runtime, "queued")
    agent.wait(lambda: ids(agent) == ["queued"], "what was queued")
    agent.wait(lambda: agent.received.snapshots[-1].paused, "a snapshot that says so")
    agent.pause(paused=False)
    wait_until(lambda: runtime.active, "hooks are active")


def test_identity_that_rises_is_announced(agent: FakeAgent, make_runtime: Callable[..., Runtime]) -> None:
    """A worker's process that turns out to be EngineCore says so in a new Hello of the same epoch."""
    runtime = make_runtime()
    runtime.identity = type(runtime.identity)(process="worker", engine="0")
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    runtime.identify(process="engine-core", key="0")
    agent.wait(lambda: len(agent.received.hellos) == 2, "another hello")
    runtime.identify(process="worker", key="0", rank=3)
    assert [hello.process for _, hello in agent.received.hellos] == ["worker", "engine-core"]
    assert {epoch for epoch, _ in agent.received.hellos} == {runtime.epoch}
    assert runtime.identity.process == "engine-core"


def test_goodbye_is_the_last_batch(agent: FakeAgent, runtime: Runtime) -> None:
    """The end sends what is left and says goodbye."""
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    emit_failure(runtime, "last")
    runtime.stop(5.0)
    batches = agent.received.batches()
    assert ids(agent) == ["last"]
    assert batches[-1].goodbye.reason == "exit"
    assert not runtime.active


def test_stop_is_bounded_with_a_mute_agent(agent: FakeAgent, runtime: Runtime) -> None:
    """An agent that does not answer delays the end no longer than the deadline; the thread ends."""
    agent.mute = True
    emit_failure(runtime, "r-1")
    agent.wait(lambda: agent.received.hellos, "a hello")
    thread = runtime._exporter._thread
    runtime.stop(0.2)
    thread.join(5.0)
    assert not thread.is_alive()


def test_no_agent_at_all(make_runtime: Callable[..., Runtime]) -> None:
    """Without an agent memory stays bounded, every loss is counted, and the end is quick."""
    runtime = make_runtime()
    runtime.start()
    runtime._exporter._outbox._limit = 64 << 10
    for number in range(20_000):
        emit_transfer(runtime, f"request-{number}")
    wait_until(lambda: runtime.emitter.queued() < 512, "the queue is emptied")
    outbox = runtime._exporter._outbox
    wait_until(lambda: runtime._exporter.inbox.qsize() == 0, "the exporter rests")
    assert outbox.size <= 64 << 10
    kept = sum(sum(entry.batch.held.values()) for entry in outbox._entries)
    lost = sum(sum(entry.batch.lost.values()) for entry in outbox._entries)
    dropped = sum(sum(entry.batch.drops.values()) for entry in outbox._entries)
    assert kept + lost + dropped + runtime.emitter.queued() == 20_000
    thread = runtime._exporter._thread
    runtime.stop(1.0)
    assert not thread.is_alive()


def test_queue_full_is_counted(agent: FakeAgent, runtime: Runtime) -> None:
    """Entries beyond the queue's bound are given up and reported by reason and kind."""
    blocked, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        blocked.set()
        go_on.wait(10)

    runtime.snapshots.add("hold", hold)
    runtime.start()
    assert blocked.wait(10)
    capacity = runtime.emitter._capacity
    for number in range(capacity + 7):
        emit_probe(runtime, f"r-{number}")
    runtime.emit_event("load_outcome", {"outcome": 1}, component=COMPONENT_WORKER)
    runtime.snapshots.remove("hold")
    go_on.set()
    agent.wait(lambda: len(agent.received.entries()) == capacity + 1, "all that fitted")
    agent.wait(lambda: agent.received.lost() == {("queue_full", "probe_sample"): 7}, "the account")


def test_error_in_the_thread_does_not_end_it(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the exporter's own is counted, and after a pause it goes on."""
    monkeypatch.setattr("penstock.instrumentation.service.ERROR_PAUSE", 0.01)
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    broken = runtime._exporter._collector
    runtime._exporter._collector = None
    emit_failure(runtime, "r-1")
    wait_until(lambda: guard.counts, "the error is counted")
    runtime._exporter._collector = broken
    agent.wait(lambda: ids(agent) == ["r-1"], "the entry")
    agent.wait(lambda: ("penstock-exporter", "AttributeError") in agent.received.guard_errors(), "the count")


def test_idle_thread_sleeps(agent: FakeAgent, runtime: Runtime) -> None:
    """A connected exporter with nothing to send waits for the next snapshot, not for a poll."""
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    service = runtime._exporter
    assert runtime.emitter.mark == 0
    assert service._wait(0.0) == min(service._snapshot_at, service._proven_at)
