"""Producers of ECCPUConnector that are cut off, and reads that fault drills hit; over real NIXL."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.orders import SLOW, Drill, Orders
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.cpu.reads import ReadRehearsal
from penstock.rules.circuit_breaker import BreakerState
from penstock.rules.policy import Action, EcLoadFailure, PeerQuarantine
from penstock.rules.quarantine import QuarantineOrder

from demo.servers import LOOPBACK
from tests.support.ec.decisions import OUTPUTS, image, outcome_of
from tests.support.ec.fake_ec import expected
from tests.support.engine.recorder import policy
from tests.support.engine.versions import from_version
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeCpu = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning")
PROBE, TRANSFER = c.FAILURE_MODE_PROBE, c.FAILURE_MODE_TRANSFER
RECOMPUTED, FAILED = c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED
RULES = PeerQuarantine(failures=1, window=60.0, duration=60.0, max_peers_percent=100)


@pytest.fixture(autouse=True)
def allowed(recorder: Recorder) -> None:
    """Allow faults in this engine."""
    del recorder
    runtime.configure(Settings(endpoint="unix:///nowhere/ingest.sock", allow_faults=True))


def act(*, quarantine: PeerQuarantine | None = None, action: str = "recompute", **orders: Any) -> None:
    """Put a policy, and orders, in force."""
    runtime.policy.swap(
        policy(ec=EcLoadFailure(Action(action)), quarantine=quarantine), 1.0, Orders(**orders)
    )


def drill(mode: int, delay_ns: int = 0) -> dict[str, Any]:
    """Return the orders of a drill that hits every attempt."""
    made = Drill("d1", c.CHANNEL_EC, mode, 1.0, 60_000_000_000, delay_ns=delay_ns)
    return {"drills": (made,), "received_ns": time.monotonic_ns()}


def states(recorder: Recorder) -> list[int]:
    """Return the states that the producer came to."""
    return [event.state for event in recorder.take("quarantine_changed")]


@pytest.mark.parametrize(
    ("action", "media", "outcome"),
    [("recompute", True, RECOMPUTED), ("fail", True, FAILED), ("recompute", False, FAILED)],
)
def test_a_producer_that_is_cut_off(
    action: str, media: bool, outcome: int, make_cpu: MakeCpu, recorder: Recorder
) -> None:
    """It is not asked; the policy decides at once, and names it."""
    engine = make_cpu()
    (producer,) = engine.producers
    producer.save("a")
    peer = f"{LOOPBACK}:{producer.port}"
    act(action=action, quarantines=(QuarantineOrder("o1", peer, quarantined=True),))
    first = producer.announced(image("first", "a", media=media))
    engine.scheduler.add_request(first)
    engine.run_off()
    found = outcome_of(recorder, first)
    assert (found.outcome, found.decided_by) == (outcome, c.DECIDED_BY_QUARANTINE)
    assert found.peer.address == peer
    assert not engine.part._sessions
    assert not recorder.take("transfer_failure")
    assert not recorder.take("deferral_start")
    if outcome == RECOMPUTED:
        assert engine.outputs["first"] == expected(first, OUTPUTS)
        assert engine.encoded == ["a"]
    else:
        assert "quarantined" in engine.errors["first"]


def test_a_producer_that_does_not_answer_is_cut_off(make_cpu: MakeCpu, recorder: Recorder) -> None:
    """The request that waits for it encodes its item here, and so does the next one, unasked; then an order lets it in."""
    engine = make_cpu(consumer_ack_timeout_s=0.1)
    producers = [*engine.producers]
    (producer,) = producers
    producer.save("b")
    engine.producers.clear()
    act(quarantine=RULES)
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    engine.run_off()
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert outcome_of(recorder, first).decided_by == c.DECIDED_BY_QUARANTINE
    assert states(recorder) == [BreakerState.OPEN]
    (status,) = [each for each in recorder.snapshot().peers if each.quarantine]
    peer = f"{LOOPBACK}:{producer.port}"
    assert status.peer.address == peer
    # Its order is in force before the producer answers again.
    act(quarantine=RULES, quarantines=(QuarantineOrder("o1", peer, quarantined=False),))
    engine.producers.extend(producers)
    second = producer.announced(image("second", "b", first=77))
    engine.scheduler.add_request(second)
    engine.run_off()
    assert engine.outputs["second"] == expected(second, OUTPUTS)
    assert engine.loaded == ["b"]
    assert any(each.connected and each.peer.address == peer for each in recorder.snapshot().peers)


@from_version(0, 32, "looks at no announced shape")
def test_what_is_not_the_producers_fault(make_cpu: MakeCpu, recorder: Recorder) -> None:
    """An item that it does not have any more, and an announcement that is wrong, cut nothing off."""
    engine = make_cpu()
    (producer,) = engine.producers
    act(quarantine=RULES)
    engine.scheduler.add_request(producer.announced(image("gone", "a")))
    engine.scheduler.add_request(producer.announced(image("wrong", "b", first=77), shape=[1, 64]))
    engine.run_off()
    assert {each.mode for each in recorder.take("transfer_failure")} == {PROBE, c.FAILURE_MODE_SETUP}
    assert not states(recorder)


@pytest.mark.parametrize("mode", [PROBE, TRANSFER])
def test_a_drill_that_fails(mode: int, make_cpu: MakeCpu, recorder: Recorder) -> None:
    """The producer is not asked; failure and outcome are marked, and its circuit opens as a rehearsal."""
    engine = make_cpu()
    (producer,) = engine.producers
    producer.save("a")
    act(quarantine=RULES, **drill(mode))
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    engine.run_off()
    engine.scheduler.add_request(image("after", first=77))
    engine.run_off()
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert not engine.part._sessions
    marked = [each for each in recorder.events if each.rehearsal]
    kinds = [each.WhichOneof("body") for each in marked]
    assert kinds == ["transfer_failure", "load_outcome", "quarantine_changed"]
    failure, outcome = marked[0].transfer_failure, marked[1].load_outcome
    assert (failure.mode, failure.error_text) == (mode, "drill d1")
    assert failure.peer.address == f"{LOOPBACK}:{producer.port}"
    assert (outcome.mode, outcome.decided_by) == (mode, c.DECIDED_BY_POLICY)


def test_a_drill_that_is_slow(make_cpu: MakeCpu, recorder: Recorder) -> None:
    """The read begins after its delay, with right tokens; nothing is reported as failed."""
    engine = make_cpu()
    (producer,) = engine.producers
    producer.save("a")
    act(**drill(SLOW, 100_000_000))
    first = producer.announced(image("first", "a"))
    engine.scheduler.add_request(first)
    began = time.monotonic_ns()
    engine.run_off()
    assert time.monotonic_ns() - began >= 100_000_000
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert engine.loaded == ["a"]
    assert not recorder.take("transfer_failure")


def test_without_other_engines_nothing_can_be_rehearsed_but_loads(
    make_cpu: MakeCpu, recorder: Recorder
) -> None:
    """The engine refuses it with a sentence."""
    del recorder
    make_cpu(role="ec_both")
    made = Drill("d1", c.CHANNEL_EC, TRANSFER, 1.0, 60_000_000_000)
    assert "use mode load" in runtime.policy.unfit_drill(made)


def test_an_attempt_is_drawn_once() -> None:
    """However often vLLM asks; the next attempt is drawn anew, and no more than the capacity is remembered."""
    clock, drawn = ManualClock(), []
    rehearsal = ReadRehearsal(clock)

    def hit(mode: int, address: str) -> Drill | None:
        drawn.append((mode, address))
        return Drill("d1", c.CHANNEL_EC, SLOW, 1.0, 1, delay_ns=5) if mode == SLOW else None

    assert rehearsal.failing("a", "p:1") is None
    assert not drawn
    rehearsal.hit = hit
    for _ in range(3):
        assert rehearsal.failing("a", "p:1") is None
        assert rehearsal.is_held("a")
    assert drawn == [(PROBE, "p:1"), (TRANSFER, "p:1"), (SLOW, "p:1")]
    clock.advance(1)
    assert not rehearsal.is_held("a")
    assert rehearsal.made_late("a")
    rehearsal.end("a")
    assert not rehearsal.made_late("a")
    assert rehearsal.failing("a", "p:1") is None
    assert len(drawn) == 2 * len(("probe", "transfer", "slow"))
