"""Quarantine in a real scheduler with vLLM's own NIXL connector: which requests may load, which peers are contacted, what is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import Orders
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import admission
from penstock.instrumentation.vllm.messages.worker_report import Culprit
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.rules.circuit_breaker import BreakerState
from penstock.rules.policy import PeerQuarantine
from penstock.rules.quarantine import QuarantineOrder

from tests.support.engine.client_errors import sent_facts
from tests.support.engine.parked import fail_loads, finish_loads, park, remote, serve, stop_reasons
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, PEER, request, step
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
HEALTHY = "10.0.0.8:5600"
RULES = PeerQuarantine(failures=2, window=60.0, duration=60.0, max_peers_percent=50)
SECOND = 1_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the gate a clock that only the test moves."""
    clock = ManualClock()

    class Time:
        monotonic_ns = staticmethod(clock)
        time_ns = staticmethod(clock)

    monkeypatch.setattr(admission, "time", Time)
    return clock


def sicken(scheduler: Any, **failure: Any) -> None:
    """Make the healthy peer known, then let two loads from the other one fail."""
    finish_loads(scheduler, good := park(scheduler, "good", peer=HEALTHY, first=300))
    serve(scheduler, good)
    for index in range(2):
        bad = park(scheduler, f"bad{index}", first=310 + index)
        fail_loads(scheduler, bad, **failure)
        serve(scheduler, bad)


def changes(recorder: Recorder) -> list[tuple[str, int, int, str]]:
    """Return (peer, previous, state, reason) of all changes."""
    return [
        (event.peer.address, event.previous, event.state, event.reason)
        for event in recorder.take("quarantine_changed")
    ]


@KINDS
def test_a_sick_peer_is_not_asked(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """After two failures the next request computes its prompt here, at once; the healthy peer is not touched."""
    scheduler = make_scheduler(kind)
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler)
    assert changes(recorder) == [(PEER, BreakerState.CLOSED, BreakerState.OPEN, "failures")]
    local = request("local", first=320, params=remote())
    scheduler.add_request(local)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"local": 3 * BLOCK}
    assert not output.kv_connector_metadata.reqs_to_recv
    park(scheduler, "elsewhere", peer=HEALTHY, first=321)
    (outcome,) = recorder.take("load_outcome", "local")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_QUARANTINE)
    assert (outcome.mode, outcome.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_TIMEOUT)
    assert (outcome.peer.address, outcome.tokens_kept, outcome.tokens_recomputed) == (PEER, 0, 3 * BLOCK)
    assert "quarantined" in outcome.reason
    (status,) = recorder.snapshot().peers
    assert (status.peer.address, status.quarantine) == (PEER, QUARANTINE_STATE_OPEN)
    assert status.quarantine_until_unix_nano > 0


@KINDS
def test_too_much_to_recompute_fails_at_once(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request too large to compute here fails in the same step, with an error that names another server as the remedy."""
    scheduler = make_scheduler(kind)
    runtime.policy.swap(policy("auto", quarantine=RULES, max_recompute_tokens=3 * BLOCK), 1.0)
    sicken(scheduler)
    large = request("large", first=320, tokens=5 * BLOCK, params=remote())
    scheduler.add_request(large)
    outputs = step(scheduler)
    told = stop_reasons(outputs)
    assert told.keys() == {"large"}
    assert f"mode handshake, peer {PEER}): the peer is quarantined; 160 tokens lost" in told["large"]
    facts = sent_facts(outputs)["large"]
    assert facts is not None
    # Until the quarantine ends, which has just begun; the failure that began it was another request's.
    assert (facts["decided_by"], facts["retry_after_s"], facts["blocks_held"]) == ("quarantine", 60, None)
    assert (facts["mode"], facts["peer"]["address"]) == ("handshake", PEER)
    assert "large" not in scheduler.requests
    assert not scheduler.connector.connector_scheduler._reqs_need_recv
    (outcome,) = recorder.take("load_outcome", "large")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_QUARANTINE)


def test_half_open(make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock) -> None:
    """After the time one request probes; while it does the others compute here; its success closes the circuit."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler)
    clock.now += 61 * SECOND
    probe = park(scheduler, "probe", first=320)
    other = request("other", first=321, params=remote())
    scheduler.add_request(other)
    step(scheduler)
    assert other.status.name == "RUNNING"
    finish_loads(scheduler, probe)
    assert [change[1:] for change in changes(recorder)] == [
        (BreakerState.CLOSED, BreakerState.OPEN, "failures"),
        (BreakerState.OPEN, BreakerState.HALF_OPEN, "expired"),
        (BreakerState.HALF_OPEN, BreakerState.CLOSED, "probe_ok"),
    ]
    park(scheduler, "again", first=322)
    assert not recorder.snapshot().peers


def test_a_probe_that_leaves_makes_room(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """A probe whose client goes away tells nothing: the next request probes."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler)
    clock.now += 61 * SECOND
    park(scheduler, "probe", first=320)
    scheduler.finish_requests("probe", RequestStatus.FINISHED_ABORTED)
    fail_loads(scheduler, park(scheduler, "next", first=321))
    assert changes(recorder)[-1][1:] == (BreakerState.HALF_OPEN, BreakerState.OPEN, "probe_failed")


def test_one_event_for_one_change(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A quarantined address behind which another engine id shows up has not changed its standing."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler)
    for index, engine_id in enumerate(("another", "third")):
        scheduler.add_request(request(f"late{index}", first=320 + index, params=remote(PEER, engine_id)))
        step(scheduler)
    assert recorder.snapshot().peers[0].peer.engine_id == "third"
    assert changes(recorder) == [(PEER, BreakerState.CLOSED, BreakerState.OPEN, "failures")]


def test_orders(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """An operator's order holds without rules and on an idle engine; the outcome has no mode; lifting ends it."""
    scheduler = make_scheduler(own="recompute")
    order = Orders(quarantines=(QuarantineOrder("o", PEER, quarantined=True),))
    runtime.policy.swap(policy(), 1.0, order)
    assert changes(recorder) == [(PEER, BreakerState.CLOSED, BreakerState.OPEN, "operator")]
    (status,) = recorder.snapshot().peers
    assert (status.peer.address, status.quarantine) == (PEER, QUARANTINE_STATE_OPEN)
    local = request("local", first=320, params=remote())
    scheduler.add_request(local)
    step(scheduler)
    assert local.status.name == "RUNNING"
    (outcome,) = recorder.take("load_outcome", "local")
    assert (outcome.mode, outcome.decided_by) == (0, c.DECIDED_BY_QUARANTINE)
    runtime.policy.swap(policy(), 1.0, Orders())
    park(scheduler, "remote", first=321)
    assert not recorder.snapshot().peers


def test_no_request_reaches_a_quarantined_peer(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """No heartbeat, no clean-up and no notification after a full local hit starts a handshake with it."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler()
    nixl = scheduler.connector.connector_scheduler
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler)
    scheduler.add_request(request("aborted", first=320, params=remote()))
    scheduler.add_request(request("hit", first=310, params=remote()))
    healthy = request("healthy", first=321, params=remote(HEALTHY, "healthy-engine"))
    scheduler.add_request(healthy)
    scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    assert not nixl._reqs_need_recv
    nixl._last_heartbeat_time = float("-inf")
    metadata = scheduler.schedule().kv_connector_metadata
    assert metadata.reqs_to_recv.keys() == {"healthy"}
    assert metadata.heartbeat_by_engine.keys() == {"healthy-engine"}
    assert recorder.take("load_outcome", "hit")[0].decided_by == c.DECIDED_BY_QUARANTINE


def test_a_request_that_stays_local_is_of_a_batch(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """With ``bidirectional_kv_xfer`` a finished request's blocks are kept for the next turn: the workers have to know it."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler)
    scheduler.connector.connector_scheduler.is_bidirectional_kv_xfer_enabled = True
    orders: list[Any] = []
    attach = scheduler._penstock.loads.attach

    def note(metadata: Any, output: Any) -> None:
        orders.append(metadata)
        attach(metadata, output)

    scheduler._penstock.loads.attach = note
    scheduler.add_request(request("local", first=320, max_tokens=1, params=remote()))
    step(scheduler)
    step(scheduler)
    before, after = orders
    assert (before.reqs_in_batch, set(before.reqs_to_recv)) == ({"local"}, set())
    assert set(after.reqs_to_send) == {"local"}
    assert recorder.take("load_outcome", "local")[0].decided_by == c.DECIDED_BY_QUARANTINE


def test_a_lease_that_nobody_reads_is_not_prolonged(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request that computes here sends no heartbeat any more, also when its peer is back."""
    scheduler = make_scheduler()
    nixl = scheduler.connector.connector_scheduler
    order = Orders(quarantines=(QuarantineOrder("o", PEER, quarantined=True),))
    runtime.policy.swap(policy("recompute"), 1.0, order)
    scheduler.add_request(request("local", first=320, params=remote()))
    step(scheduler)
    runtime.policy.swap(policy("recompute"), 1.0, Orders())
    nixl._last_heartbeat_time = float("-inf")
    assert not scheduler.schedule().kv_connector_metadata.heartbeat_by_engine
    assert recorder.take("load_outcome", "local")[0].decided_by == c.DECIDED_BY_QUARANTINE


def test_a_read_in_flight_keeps_its_lease(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Heartbeats go on to a peer that is quarantined while something is still being read from it."""
    scheduler = make_scheduler()
    nixl = scheduler.connector.connector_scheduler
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    reading = park(scheduler, "reading", first=330)
    sicken(scheduler)
    nixl._last_heartbeat_time = float("-inf")
    assert scheduler.schedule().kv_connector_metadata.heartbeat_by_engine.keys() == {"prefill-engine"}
    assert changes(recorder)
    assert reading.status.name == "WAITING_FOR_REMOTE_KVS"


def test_rehearsed_quarantine_is_marked(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A quarantine that a fault drill brought about says so."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    sicken(scheduler, rehearsal=True)
    (event,) = [event for event in recorder.events if event.WhichOneof("body") == "quarantine_changed"]
    assert event.rehearsal


def test_no_policy_no_quarantine(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Without rules every request is loaded; taking the rules away lifts what they brought about."""
    scheduler = make_scheduler(own="recompute")
    sicken(scheduler)
    park(scheduler, "free", first=320)
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    for index in range(2):
        fail_loads(scheduler, park(scheduler, f"worse{index}", first=340 + index))
    assert recorder.snapshot().peers[0].quarantine == QUARANTINE_STATE_OPEN
    runtime.policy.swap(policy(), 1.0)
    assert changes(recorder)[-1] == (PEER, BreakerState.OPEN, BreakerState.CLOSED, "policy")
    park(scheduler, "freed", first=322)


@KINDS
@pytest.mark.parametrize("counts", [True, False], ids=["dead", "slow"])
def test_the_culprit_is_cut_off(
    kind: str, counts: bool, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """What a dead peer does to loads from a healthy one counts against the dead one, and nothing against the healthy one."""
    scheduler = make_scheduler(kind)
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    mode, error = (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT) if counts else (0, 0)
    culprit = Culprit(Peer(PEER, "dead-engine"), mode, error)
    finish_loads(scheduler, first := park(scheduler, "first"))
    serve(scheduler, first)
    for index in range(2):
        victim = park(scheduler, f"victim{index}", peer=HEALTHY, first=300 + index)
        fail_loads(scheduler, victim, mode=c.FAILURE_MODE_COLLATERAL, culprit=culprit)
        serve(scheduler, victim)
    assert changes(recorder) == (
        [(PEER, BreakerState.CLOSED, BreakerState.OPEN, "failures")] if counts else []
    )
    (outcome,) = recorder.take("load_outcome", "victim1")
    assert (outcome.mode, outcome.outcome) == (c.FAILURE_MODE_COLLATERAL, c.OUTCOME_RECOMPUTED)
    park(scheduler, "again", peer=HEALTHY, first=330)
    if counts:
        sent = request("sent", first=331, params=remote())
        scheduler.add_request(sent)
        step(scheduler)
        (outcome,) = recorder.take("load_outcome", "sent")
        assert (outcome.mode, outcome.decided_by) == (c.FAILURE_MODE_TIMEOUT, c.DECIDED_BY_QUARANTINE)


def test_a_culprit_from_which_loads_arrive_is_well(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A peer that holds others up now and then is not cut off as long as its own loads arrive in between."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute", quarantine=RULES), 1.0)
    culprit = Culprit(Peer(PEER), c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    for index in range(4):
        victim = park(scheduler, f"victim{index}", peer=HEALTHY, first=300 + index)
        fail_loads(scheduler, victim, mode=c.FAILURE_MODE_COLLATERAL, culprit=culprit)
        finish_loads(scheduler, good := park(scheduler, f"good{index}", first=310 + index))
        serve(scheduler, victim, good)
    assert not changes(recorder)


def test_the_client_reads_the_peer_s_name(make_scheduler: MakeScheduler) -> None:
    """A request that fails by another peer's doing names that peer to its client."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("fail"), 1.0)
    victim = park(scheduler, "victim", peer=HEALTHY)
    told = stop_reasons(
        fail_loads(scheduler, victim, mode=c.FAILURE_MODE_COLLATERAL, culprit=Culprit(Peer(PEER)))
    )
    assert f"(mode collateral, peer unknown, caused by peer {PEER})" in told["victim"]
