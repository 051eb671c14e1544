"""The exporter's snapshots, pause, identity, bounds and end, against an agent's double on a real socket."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import Identity
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.telemetry import exporter, snapshots
from penstock.instrumentation.telemetry.batcher import BATCH_ENTRIES
from penstock.instrumentation.telemetry.encoder import ROWS_MAX, TEXT_MAX
from penstock.proto.constants import COMPONENT_WORKER

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import emit_failure, emit_probe, emit_transfer
from tests.support.engine.runtime_threads import exporter_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.runtime import Runtime
    from penstock.proto.v1.snapshot_pb2 import Snapshot

    from tests.support.agent.fake_agent import FakeAgent


def ids(agent: FakeAgent) -> list[str]:
    """Return the request ids of all committed entries, sorted."""
    return sorted(request_id for _, request_id in agent.received.entries())


@pytest.mark.usefixtures("frequent_snapshots")
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
    agent.wait(agent.received.guard_errors, "the guard's count")
    assert ("snapshot.broken", "ValueError") in agent.received.guard_errors()


@pytest.mark.usefixtures("frequent_snapshots")
def test_a_busy_source_has_its_snapshot_too(agent: FakeAgent, runtime: Runtime) -> None:
    """A batch that goes at the same moment does not keep the snapshot back: the stream is not behind for that."""
    runtime.start()

    def reported() -> bool:
        # At every turn there is something to send.
        emit_transfer(runtime, "r-1")
        return len(agent.received.snapshots) >= 4

    agent.wait(reported, "four snapshots")
    assert agent.received.entries()


@pytest.mark.usefixtures("frequent_snapshots")
def test_oversize_snapshot_is_dropped_and_counted(agent: FakeAgent, runtime: Runtime) -> None:
    """A snapshot of more than a message holds is not sent; the account says so."""
    runtime.snapshots.add("big", lambda snapshot: snapshot.engine.labels.update(role="x" * (1 << 20)))
    runtime.start()
    agent.wait(lambda: ("oversize", "snapshot") in agent.received.lost(), "the account")
    assert agent.received.snapshots == []


@pytest.mark.usefixtures("frequent_snapshots")
def test_hostile_names_cost_no_gauges(agent: FakeAgent, runtime: Runtime) -> None:
    """Peers with names of a megabyte, and too many of them, are cut and counted; the rest of the snapshot arrives."""

    def crowd(snapshot: Snapshot) -> None:
        snapshot.deferred.add(count=3, peer={"address": "x" * (1 << 20)})
        for number in range(ROWS_MAX + 5):
            snapshot.peers.add(peer={"address": f"10.0.0.7:{number}"})

    runtime.snapshots.add("crowd", crowd)
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    snapshot = agent.received.snapshots[0]
    assert (len(snapshot.peers), snapshot.deferred[0].count) == (ROWS_MAX, 3)
    assert len(snapshot.deferred[0].peer.address) == TEXT_MAX
    agent.wait(lambda: ("oversize", "snapshot_row") in agent.received.lost(), "the account")


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


@pytest.mark.usefixtures("frequent_snapshots")
def test_a_change_of_the_pause_is_said_at_once(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator waits for it: neither the pause nor its end waits for the snapshot of the next second."""
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    monkeypatch.setattr(snapshots, "SNAPSHOT_INTERVAL", 3600.0)
    agent.wait(lambda: len(agent.received.snapshots) >= 2, "the last one of a second")
    emit_failure(runtime, "queued")
    agent.pause(paused=True)
    agent.wait(
        lambda: (
            agent.received.snapshots[-1].paused and not agent.received.snapshots[-1].emitter.pending_entries
        ),
        "a snapshot that says so, behind what was queued",
    )
    assert ids(agent) == ["queued"]
    agent.pause(paused=False)
    agent.wait(lambda: not agent.received.snapshots[-1].paused, "a snapshot that says so")
    # The kill switch of the policy stream, whose thread is not the exporter's.
    runtime.pause("policy", paused=True)
    agent.wait(lambda: agent.received.snapshots[-1].paused, "a snapshot that says so")


def test_identity_that_rises_is_announced(agent: FakeAgent, make_runtime: Callable[..., Runtime]) -> None:
    """A worker's process that turns out to be EngineCore says so in a new Hello of the same epoch."""
    runtime = make_runtime()
    runtime.session.identity = Identity(process="worker", engine="0")
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    runtime.identify(process="engine-core", key="0")
    agent.wait(lambda: len(agent.received.hellos) == 2, "another hello")
    runtime.identify(process="worker", key="0", rank=3)
    assert [hello.process for _, hello in agent.received.hellos] == ["worker", "engine-core"]
    assert {epoch for epoch, _ in agent.received.hellos} == {runtime.session.epoch}
    assert runtime.identity.process == "engine-core"


def test_goodbye_is_the_last_batch(agent: FakeAgent, runtime: Runtime) -> None:
    """The end sends what is left and says goodbye."""
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    emit_failure(runtime, "last")
    runtime.stop(60.0)
    batches = agent.received.batches()
    assert ids(agent) == ["last"]
    assert batches[-1].goodbye.reason == "exit"
    assert not runtime.active


def test_a_process_that_failed_says_no_goodbye(agent: FakeAgent, runtime: Runtime) -> None:
    """What it has to tell is sent all the same."""
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    emit_failure(runtime, "last")
    runtime.session.failed = True
    runtime.stop(60.0)
    batches = agent.received.batches()
    assert ids(agent) == ["last"]
    assert not any(batch.HasField("goodbye") for batch in batches)


def test_stop_is_bounded_with_a_mute_agent(agent: FakeAgent, runtime: Runtime) -> None:
    """An agent that does not answer delays the end no longer than the deadline; the thread ends."""
    agent.mute = True
    emit_failure(runtime, "r-1")
    agent.wait(lambda: agent.received.hellos, "a hello")
    thread = exporter_of(runtime)._thread
    runtime.stop(0.2)
    thread.join(60.0)
    assert not thread.is_alive()


def test_no_agent_at_all(make_runtime: Callable[..., Runtime]) -> None:
    """Without an agent memory stays bounded, every loss is counted, and the end is quick."""
    runtime = make_runtime()
    runtime.start()
    exporter_of(runtime)._outbox._limit = 64 << 10
    for number in range(20_000):
        emit_transfer(runtime, f"request-{number}")
    wait_until(lambda: runtime.emitter.queued() < 512, "the queue is emptied")
    outbox = exporter_of(runtime)._outbox
    wait_until(lambda: exporter_of(runtime).inbox.qsize() == 0, "the exporter rests")
    wait_until(
        lambda: outbox.entries + runtime.emitter.queued() == 20_000, "every entry is in one of the two"
    )
    assert outbox.size <= 64 << 10
    thread = exporter_of(runtime)._thread
    runtime.stop(60.0)
    assert not thread.is_alive()


def test_queue_full_is_counted(agent: FakeAgent, runtime: Runtime) -> None:
    """Entries beyond the queue's bound are given up and reported by reason and kind."""
    blocked, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        blocked.set()
        go_on.wait(60)

    runtime.snapshots.add("hold", hold)
    runtime.start()
    assert blocked.wait(60)
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
    monkeypatch.setattr("penstock.instrumentation.transport.background_thread.ERROR_PAUSE", 0.01)
    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    service: Any = exporter_of(runtime)
    broken = service._batcher
    service._batcher = None
    emit_failure(runtime, "r-1")
    wait_until(lambda: guard.counts, "the error is counted")
    service._batcher = broken
    agent.wait(lambda: ids(agent) == ["r-1"], "the entry")
    agent.wait(lambda: ("penstock-exporter", "AttributeError") in agent.received.guard_errors(), "the count")


def test_failed_encoder_is_accounted_for(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that an error of the encoder's own takes with it are counted."""
    monkeypatch.setattr(guard, "raising", False)
    monkeypatch.setattr("penstock.instrumentation.transport.background_thread.ERROR_PAUSE", 0.01)

    def broken(*_: object) -> None:
        raise MemoryError

    runtime.start()
    agent.wait(lambda: agent.received.hellos, "a hello")
    with monkeypatch.context() as patch:
        patch.setattr("penstock.instrumentation.telemetry.encoder.seal", broken)
        emit_failure(runtime, "r-1")
        wait_until(lambda: runtime.emitter.drops, "the account")
    agent.wait(lambda: agent.received.lost() == {("encode_error", "other"): 1}, "the report")


@pytest.mark.usefixtures("quick_reconnects")
def test_long_absence_is_one_line(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that stays away is one line on the log, however often it is tried."""
    monkeypatch.setattr(exporter, "WARN_AFTER", 0.0)
    runtime.start()
    wait_until(lambda: exporter_of(runtime)._connections >= 4, "four attempts")
    assert runtime.settings is not None
    line = (
        f"penstock delivers nothing to the agent at {runtime.settings.endpoint}: there is no such socket; start penstock-agent, and mount "
        "the directory of its socket here; vLLM is not affected, up to 32 MiB of entries are buffered"
    )
    assert [record.getMessage() for record in caplog.records] == [line]


def test_stopping_thread_sleeps_too(agent: FakeAgent, runtime: Runtime) -> None:
    """While the end waits for an acknowledgement the thread waits for that and its deadline alone."""
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    agent.mute = True
    service = exporter_of(runtime)
    runtime.stop(0.3)
    assert service.finished or service._wait(0.0) == min(service._answer_by, service._stop_by)
    service._thread.join(60.0)
    assert not service._thread.is_alive()


def test_idle_thread_sleeps(agent: FakeAgent, runtime: Runtime) -> None:
    """A connected exporter with nothing to send waits for the next snapshot, not for a poll."""
    runtime.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    service = exporter_of(runtime)
    assert runtime.emitter.wake_threshold == BATCH_ENTRIES - 1  # an entry waits for the snapshot, too
    wait_until(lambda: service._wait(0.0) == min(service._snapshots.due_at, service._proven_at), "it sleeps")
