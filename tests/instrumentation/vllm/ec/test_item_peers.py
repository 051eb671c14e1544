"""Quarantine of the peers of encoder outputs, in vLLM's own scheduler: who is asked, what is done instead, what is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import Orders
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import admission
from penstock.instrumentation.vllm.ec.protocol import EcFailure
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.rules.circuit_breaker import BreakerState
from penstock.rules.policy import Action, EcLoadFailure, PeerQuarantine
from penstock.rules.quarantine import QuarantineOrder

from tests.support.ec.decisions import OUTPUTS, image
from tests.support.ec.fake_ec import LEFT, PRODUCERS, ToyEcEngine, expected
from tests.support.engine.recorder import policy
from tests.support.manual_clock import SECOND, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
SICK, HEALTHY = PRODUCERS
RULES = PeerQuarantine(failures=2, window=60.0, duration=60.0, max_peers_percent=50)
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the gate a clock that only the test moves."""
    clock = ManualClock()

    class Time:
        monotonic_ns = staticmethod(clock)
        time_ns = staticmethod(clock)

    monkeypatch.setattr(admission, "time", Time)
    return clock


def act(action: str = "", *ordered: str, rules: PeerQuarantine | None = RULES) -> None:
    """Put a policy in force, with an order about each peer in *ordered*."""
    body = policy(quarantine=rules, ec=EcLoadFailure(Action(action)) if action else None)
    orders = tuple(QuarantineOrder(f"o-{peer}", peer, quarantined=True) for peer in ordered)
    runtime.policy.swap(body, 1.0, Orders(quarantines=orders))


def sicken(scheduler: Any, mode: int = c.FAILURE_MODE_PROBE, **fields: Any) -> None:
    """Let two attempts with one producer fail, and an item come from the other."""
    connector = scheduler.ec_connector
    engine = ToyEcEngine(scheduler, ahead=False)
    for index in range(2):
        scheduler.add_request(image(f"early{index}", f"e{index}"))
        engine.step()
        connector.fail(f"e{index}", SICK, mode, **fields)
        engine.run()
    connector.orders.clear()


def changes(recorder: Recorder) -> list[tuple[str, int, int, str]]:
    """Return (peer, previous, state, reason) of all changes."""
    return [
        (event.peer.address, event.previous, event.state, event.reason)
        for event in recorder.take("quarantine_changed")
    ]


@KINDS
def test_a_sick_peer_is_not_asked(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """After two failures the other producer is asked alone; nothing is decided about a request that can still load."""
    scheduler = make_ec_scheduler(kind, connector="ToySources")
    act("recompute")
    sicken(scheduler)
    assert changes(recorder) == [(SICK, CLOSED, OPEN, "failures")]
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    served = image("served", "a")
    scheduler.add_request(served)
    engine.step()
    assert scheduler.ec_connector.orders == [("a", (HEALTHY,))]
    scheduler.ec_connector.deliver("a", HEALTHY)
    engine.run()
    assert engine.outputs["served"] == expected(served, OUTPUTS)
    assert engine.loaded == ["a"]
    assert not recorder.take("load_outcome")
    (status,) = recorder.snapshot().peers
    assert (status.peer.address, int(status.quarantine)) == (SICK, OPEN)


@KINDS
@pytest.mark.parametrize(
    ("action", "media", "outcome"),
    [
        ("recompute", True, c.OUTCOME_RECOMPUTED),
        ("auto", True, c.OUTCOME_RECOMPUTED),
        ("", True, c.OUTCOME_RECOMPUTED),
        ("fail", True, c.OUTCOME_FAILED),
        ("recompute", False, c.OUTCOME_FAILED),
    ],
)
def test_no_peer_is_left(
    kind: str,
    action: str,
    media: bool,
    outcome: int,
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """Where all producers are cut off nothing is asked, nothing waits, and the policy decides at once."""
    scheduler = make_ec_scheduler(kind, connector="ToySources")
    act(action, *PRODUCERS, rules=None)
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    first = image("first", "a", "b", media=media)
    engine.run(first)
    assert not scheduler.ec_connector.orders
    assert not recorder.take("deferral_start")
    (found,) = recorder.take("load_outcome", "first")
    assert (found.channel, found.outcome, found.decided_by) == (
        c.CHANNEL_EC,
        outcome,
        c.DECIDED_BY_QUARANTINE,
    )
    assert (found.mode, found.peer.address, found.items_recomputed) == (0, SICK, 2)
    assert "quarantined" in found.reason
    if outcome == c.OUTCOME_RECOMPUTED:
        assert engine.outputs["first"] == expected(first, OUTPUTS)
        assert engine.encoded == ["a", "b"]
    else:
        assert f"EC load failure (peer {SICK}): the peer is quarantined" in engine.errors["first"]


def test_one_decision(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What is to be encoded here stays so for that request, however often it is asked about and whatever is lifted."""
    scheduler = make_ec_scheduler(connector="ToySources")
    act("recompute", *PRODUCERS)
    first = image("first", "a")
    scheduler.add_request(first)
    with runtime.policy.step():
        for _ in range(3):
            assert scheduler.ec_connector.ensure_cache_available(first, 0)
    act("recompute")
    with runtime.policy.step():
        assert scheduler.ec_connector.ensure_cache_available(first, 0)
    assert not scheduler.ec_connector.orders
    assert len(recorder.take("load_outcome", "first")) == 1
    ToyEcEngine(scheduler, ahead=False).run()
    assert not scheduler._penstock.ec.peers._local


@KINDS
def test_half_open(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """After the time one request asks, for all its items; another asks the rest; the item that comes closes the circuit."""
    scheduler = make_ec_scheduler(kind, connector="ToySources")
    connector = scheduler.ec_connector
    act("recompute")
    sicken(scheduler)
    clock.now += 61 * SECOND
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    probe, other = image("probe", "a", "b"), image("other", "c", first=500)
    scheduler.add_request(probe)
    scheduler.add_request(other)
    engine.step()
    assert connector.orders == [("a", PRODUCERS), ("b", PRODUCERS), ("c", (HEALTHY,))]
    connector.deliver("a", SICK)
    for item in "bc":
        connector.deliver(item, HEALTHY)
    engine.run()
    assert [change[1:] for change in changes(recorder)] == [
        (CLOSED, OPEN, "failures"),
        (OPEN, HALF_OPEN, "expired"),
        (HALF_OPEN, CLOSED, "probe_ok"),
    ]
    assert not recorder.snapshot().peers
    assert not recorder.take("load_outcome")


@pytest.mark.parametrize(
    ("mode", "end", "state"),
    [
        (c.FAILURE_MODE_PROBE, "miss", CLOSED),
        (c.FAILURE_MODE_TRANSFER, "miss", HALF_OPEN),
        (c.FAILURE_MODE_PROBE, "fail", OPEN),
        (c.FAILURE_MODE_TRANSFER, "deliver", CLOSED),
        (c.FAILURE_MODE_PROBE, "leave", HALF_OPEN),
        (c.FAILURE_MODE_PROBE, "nothing", HALF_OPEN),
    ],
)
def test_what_a_probe_shows(
    mode: int,
    end: str,
    state: BreakerState,
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
    clock: ManualClock,
) -> None:
    """An answer ends a silence, an item any quarantine; a probe that says nothing makes room for the next request's."""
    scheduler = make_ec_scheduler(connector="ToySources")
    connector = scheduler.ec_connector
    act("recompute")
    sicken(scheduler, mode)
    clock.now += 61 * SECOND
    engine = ToyEcEngine(scheduler, ahead=False)
    scheduler.add_request(image("probe", "a"))
    engine.step()
    if end == "leave":
        scheduler.finish_requests("probe", LEFT)
    elif end == "nothing":
        connector.coming.discard("a")
        connector.absent.add("a")
    else:
        getattr(connector, end)("a", SICK)
    scheduler.add_request(image("next", "b", first=500))
    connector.orders.clear()
    engine.step()
    assert changes(recorder)[-1][2] == state
    assert connector.orders == [("b", (HEALTHY,) if state is OPEN else PRODUCERS)]


@pytest.mark.parametrize(
    ("fields", "opens"),
    [
        ({"blameless": True, "error_type": c.ERROR_TYPE_INCOMPATIBLE}, False),
        ({"error_type": c.ERROR_TYPE_EVICTED}, False),
        ({"error_type": c.ERROR_TYPE_INCOMPATIBLE}, True),
        ({"rehearsal": True}, True),
    ],
)
def test_what_counts(
    fields: dict[str, Any], opens: bool, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """What is the request's own doing, or the cache's, counts against no peer; a rehearsal does, and is marked."""
    scheduler = make_ec_scheduler(connector="ToySources")
    act("recompute")
    sicken(scheduler, **fields)
    assert bool(changes(recorder)) is opens
    marked = [
        event.rehearsal for event in recorder.events if event.WhichOneof("body") == "quarantine_changed"
    ]
    assert all(each is fields.get("rehearsal", False) for each in marked)


def test_items_that_the_workers_cannot_use(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """They count against the peer that they came from."""
    scheduler = make_ec_scheduler(connector="ToySources")
    connector = scheduler.ec_connector
    act("recompute")
    connector.peer_of = lambda _item: Peer(SICK)
    engine = ToyEcEngine(scheduler, ahead=False, bad=lambda item: item.startswith("bad"))
    for index in range(2):
        scheduler.add_request(image(f"r{index}", f"bad{index}", first=500 + index))
        engine.step()
        connector.deliver(f"bad{index}", SICK)
        engine.run()
    assert changes(recorder) == [(SICK, CLOSED, OPEN, "failures")]
    assert recorder.take("load_outcome", "r1")[0].mode == c.FAILURE_MODE_LOAD


def test_in_a_pause_nothing_is_cut_off(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A pause leaves the connector to itself."""
    scheduler = make_ec_scheduler(connector="ToySources")
    act("fail", *PRODUCERS)
    engine = ToyEcEngine(scheduler, ahead=False)
    runtime.pause("policy", paused=True)
    try:
        scheduler.add_request(image("first", "a"))
        engine.step()
        assert scheduler.ec_connector.orders == [("a", PRODUCERS)]
    finally:
        runtime.pause("policy", paused=False)
    assert not recorder.take("load_outcome")


def test_a_connector_that_cannot_be_kept_from_a_peer(
    make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Its peers are not shown as quarantined, however often they fail: they would be loaded from all the same."""
    scheduler = make_ec_scheduler(connector="ToyLoader")
    act("recompute")
    for observer in scheduler.ec_connector.observers:
        for index in range(3):
            mode, error = c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET
            observer.failed(EcFailure(f"i{index}", mode, error, "gone", Peer(SICK)))
    ToyEcEngine(scheduler, ahead=False).run(image("first", "a"))
    assert not changes(recorder)
    assert not recorder.snapshot().peers
