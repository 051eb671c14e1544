"""The order out of rotation: the agent's double sends it, the exporter takes it and reports it in its snapshots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core import Identity
from penstock.instrumentation.core.rotation import LONGEST, Rotation
from penstock.instrumentation.telemetry import snapshots

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import emit_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.runtime import Runtime
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.fake_agent import FakeAgent

FOREVER = 2**32 - 1


@pytest.fixture
def front_end(runtime: Runtime) -> Runtime:
    """Make a runtime of an API process."""
    runtime.session.identity = Identity(process="api", model="tiny")
    return runtime


def until_ns(agent: FakeAgent) -> int:
    """Return until when the last snapshot says that the server is out of rotation."""
    return agent.received.snapshots[-1].out_of_rotation_until_unix_nano if agent.received.snapshots else 0


def test_a_change_is_said_at_once(
    agent: FakeAgent, front_end: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the order nor its end waits for the snapshot of the next second; it holds for a minute at most."""
    front_end.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    assert until_ns(agent) == 0
    monkeypatch.setattr(snapshots, "SNAPSHOT_INTERVAL", 3600.0)
    agent.wait(lambda: len(agent.received.snapshots) >= 2, "the last one of a second")
    agent.take_out(FOREVER)
    agent.wait(lambda: until_ns(agent), "a snapshot that says so")
    assert LONGEST - 30 < front_end.session.seconds_out_of_rotation <= LONGEST
    assert agent.received.snapshots[-1].time_unix_nano < until_ns(agent) <= time.time_ns() + LONGEST * 10**9
    agent.take_out(0)
    agent.wait(lambda: not until_ns(agent), "a snapshot that says so")
    assert front_end.session.seconds_out_of_rotation == 0


@pytest.mark.usefixtures("quick_reconnects")
def test_an_order_outlives_its_stream(agent: FakeAgent, front_end: Runtime) -> None:
    """Only time ends it where the agent is gone; an agent that comes back without one ends it."""
    front_end.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    agent.take_out(60)
    agent.wait(lambda: until_ns(agent), "a snapshot that says so")
    agent.stop()
    assert front_end.session.seconds_out_of_rotation > 0
    agent.out_of_rotation = 0
    agent.start()
    wait_until(lambda: not front_end.session.seconds_out_of_rotation, "the greeting has ended it")


@pytest.mark.usefixtures("frequent_snapshots")
def test_an_order_ends_by_time_alone(agent: FakeAgent, front_end: Runtime) -> None:
    """The snapshots say that, too."""
    now = [0.0]
    front_end.session.rotation = Rotation(lambda: now[0])
    front_end.start()
    agent.take_out(20)
    agent.wait(lambda: until_ns(agent) and changes(agent), "a snapshot that says so, and an event")
    # The acknowledgement of the event is one more order.
    front_end.flush(60.0)
    now[0] = 20.0
    assert front_end.session.seconds_out_of_rotation == 0
    agent.wait(lambda: not until_ns(agent), "a snapshot that says so")


@pytest.mark.usefixtures("frequent_snapshots")
def test_every_acknowledgement_renews_it(agent: FakeAgent, front_end: Runtime) -> None:
    """The greeting and that of a batch carry the order as well."""
    now = [0.0]
    front_end.session.rotation = Rotation(lambda: now[0])
    agent.out_of_rotation = 20
    front_end.start()
    wait_until(lambda: front_end.session.seconds_out_of_rotation == 20, "the greeting's order")
    now[0] = 15.0
    emit_failure(front_end, "r-1")
    wait_until(lambda: front_end.session.seconds_out_of_rotation == 20, "that of the batch")


@pytest.mark.usefixtures("frequent_snapshots")
def test_the_kill_switch_puts_a_server_back(agent: FakeAgent, front_end: Runtime) -> None:
    """While it holds the order is none; after it what is left of the order."""
    front_end.start()
    agent.take_out(60)
    agent.wait(lambda: until_ns(agent), "a snapshot that says so")
    agent.pause(paused=True)
    agent.wait(lambda: agent.received.snapshots[-1].paused, "a snapshot that says so")
    assert until_ns(agent) == 0
    assert front_end.session.seconds_out_of_rotation == 0
    agent.pause(paused=False)
    agent.wait(lambda: until_ns(agent), "a snapshot that says so")


def test_only_a_front_end_takes_an_order(agent: FakeAgent, make_runtime: Callable[..., Runtime]) -> None:
    """An EngineCore has no readiness."""
    runtime = make_runtime()
    agent.out_of_rotation = 60
    emit_failure(runtime, "r-1")
    agent.wait(lambda: agent.received.entries() and agent.received.snapshots, "entry and snapshot")
    assert runtime.session.seconds_out_of_rotation == 0
    assert until_ns(agent) == 0


def test_an_order_and_its_end_are_events(agent: FakeAgent, front_end: Runtime) -> None:
    """The first of them and the end; a renewal is none. One that had lapsed is told with the time of its end."""
    now = [0.0]
    front_end.session.rotation = Rotation(lambda: now[0])
    front_end.start()
    agent.wait(lambda: agent.received.snapshots, "a snapshot")
    agent.take_out(20)
    agent.take_out(40)
    wait_until(lambda: front_end.session.seconds_out_of_rotation == 40, "the second order")
    agent.take_out(0)
    agent.wait(lambda: len(changes(agent)) == 2, "its end")
    agent.take_out(5)
    wait_until(lambda: front_end.session.seconds_out_of_rotation == 5, "a third order")
    now[0] = 105.0
    agent.take_out(7)
    agent.wait(lambda: len(changes(agent)) == 5, "the lapse of the third, and a fourth")
    out, back, third, lapsed, fourth = changes(agent)
    assert [each.rotation_changed.out for each in (out, back, third, lapsed, fourth)] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert back.rotation_changed.since_time_unix_nano == out.time_unix_nano <= back.time_unix_nano
    assert lapsed.rotation_changed.since_time_unix_nano == third.time_unix_nano
    assert fourth.time_unix_nano - lapsed.time_unix_nano == 100 * 10**9


def changes(agent: FakeAgent) -> list[Event]:
    """Return what has been told of the rotation, the oldest first."""
    return [
        event
        for batch in agent.received.batches()
        for event in batch.events
        if event.HasField("rotation_changed")
    ]
