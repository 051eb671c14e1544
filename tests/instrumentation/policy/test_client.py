"""The policy client against an agent's double on a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.instrumentation.policy import applier
from penstock.instrumentation.resilience.policy import NO_POLICY, Action
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.transport.inbox import Message, Tag
from penstock.proto.v1.common_pb2 import CHANNEL_KV, FAILURE_MODE_SETUP
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.policy_pb2 import (
    FAILURE_ACTION_FAIL,
    FAILURE_ACTION_RECOMPUTE,
    KvLoadFailure,
    PolicyBody,
    Push,
    ScheduledPolicy,
)
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure
from tests.support.engine.held_step import hold_step
from tests.support.engine.runtime_threads import policy_client_of
from tests.support.policy.clients import make_applier, make_client
from tests.support.seconds import SecondsClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.policy_pb2 import Report

    from tests.support.agent.fake_agent import FakeAgent

FIELDS = ("kv_load_failure.action",)


def entry(hash_: str, action: Any, valid_for: float = 0.0) -> ScheduledPolicy:
    """Build one entry of a schedule."""
    found = ScheduledPolicy(hash=hash_, body=PolicyBody(kv_load_failure=KvLoadFailure(action=action)))
    if valid_for:
        found.valid_for.FromNanoseconds(round(valid_for * 1e9))
    return found


FAIL = Push(schedule=[entry("h-fail", FAILURE_ACTION_FAIL)])
RECOMPUTE = Push(schedule=[entry("h-recompute", FAILURE_ACTION_RECOMPUTE)])


def last(agent: FakeAgent, kind: str) -> Report:
    """Return the last report of that kind."""
    return [report for report in agent.received.reports if report.WhichOneof("message") == kind][-1]


def count(agent: FakeAgent, kind: str) -> int:
    """Return how many reports of that kind came."""
    return sum(report.WhichOneof("message") == kind for report in agent.received.reports)


def applied(agent: FakeAgent) -> list[tuple[str, str, bool, str]]:
    """Return (cause, hash, accepted, previous hash) of all policy_applied events."""
    events = [event.policy_applied for batch in agent.received.batches() for event in batch.events]
    return [(event.cause, event.hash, event.accepted, event.previous_hash) for event in events]


@pytest.fixture
def subscribed(agent: FakeAgent, make_runtime: Callable[..., Runtime]) -> Runtime:
    """Make a runtime whose policy client has subscribed."""
    runtime = make_runtime(server="left", labels={"role": "decode"}, allow_faults=True)
    runtime.start_policy(FIELDS)
    agent.wait(lambda: count(agent, "subscribe"), "a subscription")
    return runtime


def test_subscribe_says_who(agent: FakeAgent, subscribed: Runtime) -> None:
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


def test_pause_does_not_wait_for_a_step(agent: FakeAgent, subscribed: Runtime) -> None:
    """While an engine hangs in a step the kill switch makes its hooks passive, also behind another push."""
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


BAD_DRILL = {"id": "d", "channel": CHANNEL_KV, "mode": FAILURE_MODE_SETUP, "rate": 2.0}
ORDER = {"id": "q", "peer": "10.0.0.7:5600", "state": QUARANTINE_STATE_OPEN}


def test_refused_order_keeps_no_policy_out(agent: FakeAgent, subscribed: Runtime) -> None:
    """The policy and the good orders of a push hold; the bad one is named in the ACK and is an event."""
    agent.push(Push(schedule=FAIL.schedule, drills=[BAD_DRILL], quarantines=[ORDER]))
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    ack = last(agent, "ack").ack
    assert ack.hash == subscribed.policy.current.hash == "h-fail"
    assert [(each.id, "rate 2" in each.error) for each in ack.refused_orders] == [("d", True)]
    orders = subscribed.policy.orders
    assert ([order.id for order in orders.quarantines], orders.drills) == (["q"], ())
    agent.wait(lambda: ("order", "", False, "h-fail") in applied(agent), "the event")


def test_refused_policy_keeps_no_order_out(agent: FakeAgent, subscribed: Runtime) -> None:
    """The quarantine order of a push holds although its policy is refused; the last good policy stays."""
    agent.push(FAIL)
    bad = Push(schedule=[entry("h-bad", 9)], quarantines=[ORDER])
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert (nack.field, nack.hash_in_force, list(nack.refused_orders)) == (
        "kvLoadFailure.action",
        "h-fail",
        [],
    )
    assert [order.id for order in subscribed.policy.orders.quarantines] == ["q"]
    agent.push(Push(schedule=[entry("h-bad", 9)]))
    agent.wait(lambda: count(agent, "nack") == 2, "another refusal")
    assert subscribed.policy.orders.quarantines == ()


def test_field_of_a_newer_agent_is_named(agent: FakeAgent, subscribed: Runtime) -> None:
    """What the wire has and this engine does not know is refused by its number: in a policy all of it, of orders that one."""
    unknown = b"\xe8\x04\x01"  # field 77, varint 1
    push = Push(schedule=[entry("h-new", FAILURE_ACTION_FAIL)], quarantines=[ORDER, {**ORDER, "id": "new"}])
    push.schedule[0].body.kv_load_failure.MergeFromString(unknown)
    push.quarantines[1].MergeFromString(unknown)
    agent.push(push)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert (nack.field, nack.hash_in_force) == ("kvLoadFailure.77", "")
    assert "upgrade the engine" in nack.error
    assert [(each.id, "field 77" in each.error) for each in nack.refused_orders] == [("new", True)]
    assert [order.id for order in subscribed.policy.orders.quarantines] == ["q"]


def test_refused_push_leaves_the_last_good_one(agent: FakeAgent, subscribed: Runtime) -> None:
    """A push that asks for what the engine does not do is refused by field; the policy stays, and an event tells."""
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    bad = Push(schedule=[entry("h-bad", FAILURE_ACTION_FAIL)])
    bad.schedule[0].body.kv_load_failure.max_recompute_tokens = 5
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert (nack.nonce, nack.field, nack.hash_in_force) == (2, "kvLoadFailure.maxRecomputeTokens", "h-fail")
    assert "maxRecomputeTokens" in nack.error
    assert subscribed.policy.current.hash == "h-fail"
    agent.wait(lambda: ("push", "h-bad", False, "h-fail") in applied(agent), "the event")
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack") == 2, "another refusal")
    agent.push(Push())
    agent.wait(lambda: ("push", "", True, "h-fail") in applied(agent), "the event of the end")
    assert len(applied(agent)) == 3, "the same refusal is one event"


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
