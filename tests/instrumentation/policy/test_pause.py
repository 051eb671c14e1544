"""The kill switch on the policy stream, against an agent's double on a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.instrumentation.policy import applier
from penstock.proto.v1.policy_pb2 import (
    FAILURE_ACTION_FAIL,
    FAILURE_ACTION_RECOMPUTE,
    Push,
    ScheduledPolicy,
)
from penstock.proto.v1.snapshot_pb2 import Snapshot
from penstock.rules.policy import NO_POLICY

from tests.support.agent.agent import wait_until
from tests.support.engine.held_step import hold_step
from tests.support.engine.runtime_threads import policy_client_of
from tests.support.policy.clients import make_client
from tests.support.policy.pushes import FAIL, FIELDS, RECOMPUTE, applied, count, entry, last
from tests.support.seconds import SecondsClock

if TYPE_CHECKING:
    import pytest
    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent


def test_pause_does_not_wait_for_a_step(
    agent: FakeAgent, subscribed: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an engine hangs in a step the kill switch makes its hooks passive, also behind another push."""
    monkeypatch.setattr(applier, "ATTEMPT", 0.05)
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack") == 1, "the acknowledgement")
    end = hold_step(subscribed)
    agent.push(RECOMPUTE)
    agent.push(Push(paused=True))
    wait_until(lambda: not subscribed.active, "the hooks are passive")
    assert count(agent, "ack") == 1
    end()
    agent.wait(lambda: count(agent, "ack") == 2, "the acknowledgement of the newest")
    assert (last(agent, "ack").ack.nonce, last(agent, "ack").ack.paused) == (3, True)


def test_snapshot_of_a_paused_engine_names_no_policy(agent: FakeAgent, subscribed: Runtime) -> None:
    """As soon as the hooks are passive, also while a step keeps the policy from being taken out."""
    client = policy_client_of(subscribed)
    assert client is not None
    agent.push(Push(schedule=[entry("h-fail", FAILURE_ACTION_FAIL, 60), ScheduledPolicy()]))
    agent.wait(lambda: count(agent, "ack") == 1, "the acknowledgement")
    before, after = Snapshot(), Snapshot()
    client.fill(before)
    assert (before.policy.hash, before.policy.kv_action) == ("h-fail", "fail")
    assert before.policy.expires_time_unix_nano
    end = hold_step(subscribed)
    agent.push(Push(schedule=FAIL.schedule, paused=True))
    wait_until(lambda: not subscribed.active, "the hooks are passive")
    client.fill(after)
    assert (after.policy.hash, after.policy.kv_action, after.policy.expires_time_unix_nano) == ("", "", 0)
    end()


def test_pause_and_resume(agent: FakeAgent, subscribed: Runtime) -> None:
    """The kill switch takes the policy out of force and makes hooks passive; resume puts both back."""
    agent.push(FAIL)
    agent.push(Push(schedule=FAIL.schedule, paused=True))
    agent.wait(lambda: count(agent, "ack") == 2, "the acknowledgement of the pause")
    assert (last(agent, "ack").ack.hash, last(agent, "ack").ack.paused) == ("h-fail", True)
    assert subscribed.policy.current is NO_POLICY
    assert not subscribed.active
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack") == 3, "the acknowledgement of the end")
    assert subscribed.policy.current.hash == "h-fail"
    assert subscribed.active
    agent.wait(lambda: [item[0] for item in applied(agent)] == ["push", "pause", "resume"], "the events")


def test_resume_holds_where_events_cannot_go(agent: FakeAgent, subscribed: Runtime) -> None:
    """An engine that has acknowledged its resume is active, also if the stream of events, which said "pause" too, is broken."""
    subscribed.pause("ingest", paused=True)
    agent.push(Push(schedule=FAIL.schedule, paused=True))
    agent.wait(lambda: count(agent, "ack") == 1, "the acknowledgement of the pause")
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack") == 2, "the acknowledgement of the end")
    assert subscribed.active


def test_pause_is_never_refused(agent: FakeAgent, subscribed: Runtime) -> None:
    """A push with the kill switch makes hooks passive even if its policy is refused."""
    bad = Push(schedule=[entry("", FAILURE_ACTION_FAIL)], paused=True)
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    assert not subscribed.active


def test_schedule_runs_down_while_paused(agent: FakeAgent, runtime: Runtime) -> None:
    """A pause does not stop the clock: what is in force after it is what the schedule says by then."""
    clock = SecondsClock()
    assert runtime.settings is not None
    client = make_client(runtime, runtime.settings, FIELDS, clock)
    runtime._policy_client = client
    client.start()
    agent.wait(lambda: count(agent, "subscribe"), "a subscription")
    schedule = [entry("h-1", FAILURE_ACTION_FAIL, 10), entry("h-2", FAILURE_ACTION_RECOMPUTE)]
    agent.push(Push(schedule=schedule, paused=True))
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    clock.now += 10.0
    client.wake()
    agent.wait(lambda: count(agent, "moved"), "the report")
    assert runtime.policy.current is NO_POLICY
    agent.push(Push(schedule=schedule[1:]))
    agent.wait(lambda: count(agent, "ack") == 2, "the acknowledgement")
    assert runtime.policy.current.hash == "h-2"


def test_resume_is_never_refused(agent: FakeAgent, subscribed: Runtime) -> None:
    """The kill switch is lifted also by a push whose policy is refused; the last good one is in force again."""
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack") == 1, "an ACK")
    for number, paused in enumerate((True, False), 1):
        agent.push(Push(schedule=[entry("", FAILURE_ACTION_FAIL)], paused=paused))
        agent.wait(lambda want=number: count(agent, "nack") == want, "a NACK")
        assert subscribed.paused is paused
        assert subscribed.policy.current.hash == ("" if paused else "h-fail")
