"""The policy client against an agent's double on a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from penstock.instrumentation.policy import applier
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.transport.stream import Message, Tag
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.policy_pb2 import (
    FAILURE_ACTION_FAIL,
    FAILURE_ACTION_RECOMPUTE,
    Push,
    ScheduledPolicy,
)
from penstock.rules.policy import NO_POLICY, Action

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure
from tests.support.engine.held_step import hold_step
from tests.support.engine.runtime_threads import policy_client_of
from tests.support.policy.clients import make_applier, make_client
from tests.support.policy.pushes import FAIL, FIELDS, RECOMPUTE, applied, count, entry, last
from tests.support.seconds import SecondsClock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.support.agent.fake_agent import FakeAgent


def test_subscribe_names_the_engine(agent: FakeAgent, subscribed: Runtime) -> None:
    """The subscription holds all that a selector and the agent need."""
    subscribe = last(agent, "subscribe").subscribe
    assert subscribe.epoch == subscribed.session.epoch
    assert (subscribe.key.server, subscribe.key.engine, subscribe.model) == ("left", "0", "tiny")
    assert dict(subscribe.labels) == {"role": "decode"}
    assert list(subscribe.supported_fields) == ["kv_load_failure"]
    assert subscribe.faults_allowed
    assert subscribe.takes_policy_names
    assert subscribe.hash_in_force == ""


def test_both_streams_show_the_secret_of_the_process(agent: FakeAgent, subscribed: Runtime) -> None:
    """It stays with the process when its epoch does not, and no two have the same."""
    agent.wait(lambda: agent.received.hellos, "a hello")
    secret = agent.received.hellos[0][1].secret
    assert secret == last(agent, "subscribe").subscribe.secret == subscribed.session.secret
    assert len(secret) == 16
    subscribed.session.new_epoch()
    assert subscribed.session.secret == secret
    assert Runtime().session.secret != secret
    subscribed.stop(0.0)  # this agent does not acknowledge the new epoch


def test_push_is_put_in_force_then_acknowledged(agent: FakeAgent, subscribed: Runtime) -> None:
    """A push changes the policy of the idle engine, is acknowledged by nonce and hash, and is an event."""
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    ack = last(agent, "ack").ack
    assert (ack.nonce, ack.hash, ack.paused) == (1, "h-fail", False)
    in_force = subscribed.policy.current.kv_load_failure
    assert in_force is not None
    assert in_force.action is Action.FAIL
    agent.wait(lambda: applied(agent) == [("push", "h-fail", True, "")], "the event")


def test_a_new_generation_of_the_same_content_is_put_in_force(agent: FakeAgent, subscribed: Runtime) -> None:
    """The name that a client reads is that of the present generation."""
    for generation in (3, 4):
        named = Push()
        named.CopyFrom(FAIL)
        named.schedule[0].policies.add(name="decode", generation=generation, fields=["kvLoadFailure.action"])
        agent.push(named)
        agent.wait(lambda generation=generation: count(agent, "ack") == generation - 2, "the acknowledgement")
    assert subscribed.policy.current.name_of("kvLoadFailure.action") == "policy decode, generation 4"
    agent.wait(lambda: len(applied(agent)) == 2, "both events")


def test_swap_waits_for_the_end_of_the_step(agent: FakeAgent, subscribed: Runtime) -> None:
    """While a step runs the policy does not change and no acknowledgement goes out."""
    end = hold_step(subscribed)
    agent.push(FAIL)
    wait_until(lambda: policy_client_of(subscribed)._nonce == 1, "the push has arrived")
    assert subscribed.policy.current is NO_POLICY
    assert count(agent, "ack") == 0
    end()
    agent.wait(lambda: count(agent, "ack") == 1, "the acknowledgement")
    assert subscribed.policy.current.hash == "h-fail"


def test_engine_that_hangs_in_a_step_refuses_and_follows_in_the_end(
    agent: FakeAgent, subscribed: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step beyond the deadline is answered by a NACK with what is still in force; its end brings the push and an ACK."""
    monkeypatch.setattr(applier, "STEP_DEADLINE", 0.05)
    end = hold_step(subscribed)
    push = Push(schedule=FAIL.schedule)
    push.quarantines.add(id="q", peer="p:1", state=QUARANTINE_STATE_OPEN)
    agent.push(push)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert "hangs" in nack.error
    assert nack.hash_in_force == ""
    assert [each.id for each in nack.refused_orders] == ["q"]
    assert subscribed.policy.current is NO_POLICY
    end()
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    ack = last(agent, "ack").ack
    assert (ack.nonce, ack.hash, list(ack.refused_orders)) == (nack.nonce, "h-fail", [])
    assert subscribed.policy.current.hash == "h-fail"
    assert [order.id for order in subscribed.policy.orders.quarantines] == ["q"]
    agent.wait(
        lambda: applied(agent) == [("push", "h-fail", False, ""), ("push", "h-fail", True, "")], "both events"
    )


def test_stacks_are_sent_while_a_step_hangs(agent: FakeAgent, subscribed: Runtime) -> None:
    """The answer does not wait for the end of the step, as the rest of its push does."""
    end = hold_step(subscribed)
    push = Push(schedule=FAIL.schedule)
    push.stacks.id = 5
    agent.push(push)
    agent.wait(lambda: count(agent, "stacks"), "the stacks")
    dump = last(agent, "stacks").stacks
    assert dump.id == 5
    assert "PENSTOCK_ALLOW_STACKS=1" in dump.refusal
    assert count(agent, "ack") == 0
    end()
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")


def test_stale_push_is_ignored(agent: FakeAgent, subscribed: Runtime) -> None:
    """A push that is not newer than the last one is neither put in force nor answered."""
    stream = policy_client_of(subscribed)._stream
    agent.push(FAIL)
    agent.push(RECOMPUTE)
    agent.wait(lambda: count(agent, "ack") == 2, "both acknowledgements")
    for nonce in (1, 2):
        stale = Push(nonce=nonce, schedule=FAIL.schedule)
        policy_client_of(subscribed).inbox.put(Message(Tag.ANSWER, stream, stale))
    agent.push(Push())
    agent.wait(lambda: count(agent, "ack") >= 3, "the acknowledgement of the newest")
    assert [report.ack.nonce for report in agent.received.reports if report.HasField("ack")] == [1, 2, 3]
    agent.wait(lambda: len(applied(agent)) == 3, "the events")
    assert [hash_ for _, hash_, _, _ in applied(agent)] == ["h-fail", "h-recompute", ""]


def test_policy_outlives_the_agent(agent: FakeAgent, subscribed: Runtime) -> None:
    """With the agent dead the policy stays in force; the next subscription names its hash; a push again is no event."""
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    agent.stop()
    wait_until(lambda: not policy_client_of(subscribed)._heard, "the stream has ended")
    assert subscribed.policy.current.hash == "h-fail"
    agent.first_push = FAIL
    agent.start()
    agent.wait(lambda: count(agent, "ack") == 2, "another acknowledgement")
    assert last(agent, "subscribe").subscribe.hash_in_force == "h-fail"
    assert last(agent, "ack").ack.nonce == 1
    agent.wait(lambda: applied(agent), "the event")
    assert applied(agent) == [("push", "h-fail", True, "")]


def test_no_policy_means_vllms_own_configuration(agent: FakeAgent, subscribed: Runtime) -> None:
    """An empty schedule takes the policy out of force."""
    agent.push(FAIL)
    agent.push(Push())
    agent.wait(lambda: count(agent, "ack") == 2, "both acknowledgements")
    assert subscribed.policy.current == NO_POLICY
    assert last(agent, "ack").ack.hash == ""


def test_new_epoch_subscribes_anew(agent: FakeAgent, subscribed: Runtime) -> None:
    """When the agent has lost its state the client subscribes under the new epoch."""
    first = subscribed.session.epoch
    emit_failure(subscribed, "old")
    wait_until(lambda: acknowledged(subscribed), "the entry is acknowledged")
    agent.stop()
    agent.received = type(agent.received)()
    agent.start()
    agent.wait(
        lambda: count(agent, "subscribe") and last(agent, "subscribe").subscribe.epoch != first,
        "a subscription under another epoch",
    )
    assert last(agent, "subscribe").subscribe.epoch == subscribed.session.epoch


def test_identity_that_changes_subscribes_anew(
    agent: FakeAgent, make_runtime: Callable[..., Runtime]
) -> None:
    """A role that is guessed later reaches the selector; the same identity again changes nothing."""
    runtime = make_runtime()
    runtime.start_policy(FIELDS)
    agent.wait(lambda: count(agent, "subscribe"), "a subscription")
    for _ in range(2):
        runtime.identify(process="engine-core", key="0", role="decode", model="tiny", vllm_version="0.32.0")
        agent.wait(lambda: count(agent, "subscribe") >= 2, "another subscription")
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    assert count(agent, "subscribe") == 2
    assert dict(last(agent, "subscribe").subscribe.labels) == {"role": "decode"}


def test_snapshot_holds_the_status(agent: FakeAgent, subscribed: Runtime) -> None:
    """The snapshot says what is in force, since when, until when, and what is done about a failed load."""
    agent.push(
        Push(schedule=[entry("h-fail", FAILURE_ACTION_FAIL, 3_600), entry("h-2", FAILURE_ACTION_RECOMPUTE)])
    )
    agent.wait(
        lambda: agent.received.snapshots and agent.received.snapshots[-1].policy.hash == "h-fail",
        "a snapshot",
    )
    status = agent.received.snapshots[-1].policy
    assert (status.nonce, status.connected, status.kv_action, status.ec_action) == (1, True, "fail", "")
    assert 3_590 < (status.expires_time_unix_nano - status.changed_time_unix_nano) / 1e9 < 3_610


def test_agent_without_a_feed_is_left_alone(agent: Any, make_runtime: Callable[..., Runtime]) -> None:
    """A server that refuses the subscription is asked again at the longest interval only."""
    agent.Watch = lambda _, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")
    agent.restart()
    runtime = make_runtime()
    runtime.start_policy(FIELDS)
    client = policy_client_of(runtime)
    wait_until(lambda: client._link_error, "the refusal")
    assert "does not know this call" in client._link_error
    assert client._backoff._ceiling == 5.0


def test_a_name_that_another_engine_takes_is_not_taken_back_at_once(
    agent: FakeAgent, subscribed: Runtime
) -> None:
    """Two engines of one name must not drive each other out of the feed many times a second; what holds stays."""
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    for watcher in list(agent._watchers):
        watcher.put(grpc.StatusCode.ABORTED)
    client = policy_client_of(subscribed)
    wait_until(lambda: client._link_error, "the end of the stream")
    assert client._link_error == "as the test wants it"
    assert client._backoff._ceiling == 5.0
    assert subscribed.policy.current.hash == "h-fail"


def test_schedule_runs_down_with_the_agent_dead(agent: FakeAgent, runtime: Runtime) -> None:
    """Several expiries pass on the engine's own clock; each is an event, and a report once there is a stream."""
    clock = SecondsClock()
    assert runtime.settings is not None
    client = make_client(runtime, runtime.settings, FIELDS, clock)
    runtime._policy_client = client
    client.start()
    agent.wait(lambda: count(agent, "subscribe"), "a subscription")
    agent.push(
        Push(
            schedule=[
                entry("h-1", FAILURE_ACTION_FAIL, 10),
                entry("h-2", FAILURE_ACTION_RECOMPUTE, 10),
                ScheduledPolicy(),
            ]
        )
    )
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    assert last(agent, "ack").ack.hash == "h-1"
    clock.now += 10.0
    client.wake()
    agent.wait(lambda: count(agent, "moved"), "the report")
    assert last(agent, "moved").moved.hash == "h-2"
    in_force = runtime.policy.current.kv_load_failure
    assert in_force is not None
    assert in_force.action is Action.RECOMPUTE
    agent.stop()
    clock.now += 10.0
    client.wake()
    wait_until(lambda: runtime.policy.current == NO_POLICY, "vLLM's own configuration")
    agent.start()
    agent.wait(lambda: len(applied(agent)) == 3, "three events")
    assert applied(agent) == [
        ("push", "h-1", True, ""),
        ("expiry", "h-2", True, "h-1"),
        ("expiry", "", True, "h-2"),
    ]
    agent.wait(lambda: count(agent, "subscribe") == 2, "another subscription")
    assert last(agent, "subscribe").subscribe.hash_in_force == ""


def test_an_expiry_that_a_long_step_delays_is_no_hang(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported as one only after the deadline, and only while it lasts."""
    monkeypatch.setattr(applier, "ATTEMPT", 0.01)
    clock = SecondsClock()
    policy_applier = make_applier(runtime, FIELDS, clock)
    schedule = [entry("h-1", FAILURE_ACTION_FAIL, 10), entry("h-2", FAILURE_ACTION_RECOMPUTE)]
    answer = policy_applier.apply(Push(nonce=1, schedule=schedule))
    assert answer is not None
    assert answer.ack.hash == "h-1"
    clock.now += 10.0
    end = hold_step(runtime)
    assert policy_applier.tick() is None
    assert policy_applier.last_error == ""
    clock.now += applier.STEP_DEADLINE
    assert policy_applier.tick() is None
    assert "hangs" in policy_applier.last_error
    end()
    report = policy_applier.tick()
    assert report is not None
    assert report.moved.hash == "h-2"
    assert policy_applier.last_error == ""
