"""One peer's circuit breaker."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from penstock.instrumentation.core import constants
from penstock.proto.v1 import common_pb2, events_pb2
from penstock.rules.circuit_breaker import (
    Admit,
    BreakerState,
    CircuitBreaker,
    PeerFailure,
    Rules,
)
from penstock.rules.policy import PeerQuarantine

RULES = Rules(failures=3, window_ns=30, duration_ns=60, max_peers_percent=100)
REFUSED = PeerFailure(constants.FAILURE_MODE_HANDSHAKE, constants.ERROR_TYPE_REFUSED)
INCOMPATIBLE = PeerFailure(constants.FAILURE_MODE_HANDSHAKE, constants.ERROR_TYPE_INCOMPATIBLE)
TIMEOUT = PeerFailure(constants.FAILURE_MODE_TIMEOUT, constants.ERROR_TYPE_TIMEOUT)
COLLATERAL = PeerFailure(constants.FAILURE_MODE_COLLATERAL, constants.ERROR_TYPE_REFUSED)
NUMBERS = itertools.count(1)


def fail(circuit, now, failure=REFUSED, *, engine_id="", probe=0, rules=RULES):
    """Report a failure and open the circuit if it asks for that."""
    reason = circuit.failed(failure, engine_id, probe, rules, now)
    if reason:
        circuit.open(reason, now, rehearsal=failure.rehearsal)
    return reason


def opened(now=0, failure=REFUSED, engine_id="e1"):
    """Give a circuit that failures have opened."""
    circuit = CircuitBreaker()
    circuit.learn_engine_id(engine_id, asked=True)
    while circuit.state is BreakerState.CLOSED:
        fail(circuit, now, failure)
    return circuit


def ask(circuit, now, rules=RULES):
    """Ask about one request."""
    return circuit.admit(rules, now, NUMBERS)


def test_states_are_the_wires():
    """States go on the wire as they are."""
    for state in BreakerState:
        assert events_pb2.QuarantineState.Value(f"QUARANTINE_STATE_{state.name}") == state


@pytest.mark.parametrize(
    ("policy", "rules"),
    [
        (PeerQuarantine(), Rules()),
        (PeerQuarantine(failures=1000, max_peers_percent=100), Rules(failures=1000, max_peers_percent=100)),
        (PeerQuarantine(failures=2, window=1.5), Rules(failures=2, window_ns=1_500_000_000)),
        (
            PeerQuarantine(duration=5.0, max_peers_percent=0),
            Rules(duration_ns=5_000_000_000, max_peers_percent=0),
        ),
    ],
)
def test_rules_of_a_policy(policy, rules):
    """Seconds become nanoseconds; what a policy leaves open has its default."""
    assert Rules.from_policy(policy) == rules


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"failures": 0}, "failures is 0; use 1 to 1000"),
        ({"failures": 1001}, "failures is 1001"),
        ({"window_ns": 0}, "window 0 s, duration 60 s; both"),
        ({"duration_ns": 0}, "duration 0 s; both"),
        ({"duration_ns": -1_000_000_000}, "duration -1 s"),
        ({"max_peers_percent": -1}, "maxPeersPercent is -1"),
        ({"max_peers_percent": 101}, "maxPeersPercent is 101; use 0 to 100"),
    ],
)
def test_rules_that_cannot_work(values, text):
    """A value that no circuit could work by is refused with a sentence."""
    with pytest.raises(ValueError, match=text):
        Rules(**values)


def test_opens_after_failures_in_the_window():
    """The third failure within the window opens it."""
    circuit = CircuitBreaker()
    assert [fail(circuit, now) for now in (0, 10, 29)] == ["", "", "failures"]
    assert (circuit.state, circuit.until(RULES)) == (BreakerState.OPEN, 29 + 60)


def test_the_window_slides():
    """A failure as old as the window no longer counts."""
    circuit = CircuitBreaker()
    assert [fail(circuit, now) for now in (0, 10, 30, 39)] == ["", "", "", "failures"]


@pytest.mark.parametrize("mode", [mode for mode in common_pb2.FailureMode.values() if mode])
def test_which_modes_count(mode):
    """What another request, our own library or a late reader did does not count against the peer."""
    innocent = {
        constants.FAILURE_MODE_COLLATERAL,
        constants.FAILURE_MODE_RELEASE,
        constants.FAILURE_MODE_LATE_READ,
        constants.FAILURE_MODE_EXPIRED,
    }
    circuit = CircuitBreaker()
    for now in range(10):
        fail(circuit, now, PeerFailure(mode, constants.ERROR_TYPE_OTHER))
    assert circuit.state is (BreakerState.CLOSED if mode in innocent else BreakerState.OPEN)


def test_a_missing_item_does_not_count():
    """An evicted item is a miss, not a sick peer."""
    circuit = CircuitBreaker()
    evicted = PeerFailure(constants.FAILURE_MODE_LOAD, constants.ERROR_TYPE_EVICTED)
    assert [fail(circuit, now, evicted) for now in range(5)] == [""] * 5


def test_slowness_alone_never_opens_it():
    """Transfers over our own deadline do not add up while others get through."""
    circuit = CircuitBreaker()
    for now in range(0, 60, 3):
        assert fail(circuit, now, TIMEOUT) == ""
        assert fail(circuit, now + 1, TIMEOUT) == ""
        circuit.succeeded(0)
    assert circuit.state is BreakerState.CLOSED


def test_a_peer_that_hangs_opens_it():
    """Where nothing gets through at all, transfers over the deadline count like any other failure."""
    assert opened(failure=TIMEOUT).reason == "failures"


def test_successes_do_not_hide_failures():
    """A peer that flaps fails often enough, whatever succeeds in between."""
    circuit = CircuitBreaker()
    for now in (0, 1):
        fail(circuit, now)
        circuit.succeeded(0)
    assert fail(circuit, 2) == "failures"


def test_exactly_one_probe():
    """After the duration one request probes, and the others stay local until it is decided."""
    circuit = opened()
    assert ask(circuit, 59) == Admit(remote=False, reason="failures")
    probe = ask(circuit, 60)
    assert probe.remote
    assert probe.probe
    assert circuit.state is BreakerState.HALF_OPEN
    assert ask(circuit, 61) == Admit(remote=False, reason="probing")


def test_probe_that_goes_well_closes():
    """A good probe closes the circuit, and counting starts over."""
    circuit = opened()
    circuit.succeeded(ask(circuit, 60).probe)
    assert (circuit.state, circuit.reason) == (BreakerState.CLOSED, "probe_ok")
    assert [fail(circuit, now) for now in (61, 62, 63)] == ["", "", "failures"]


def test_probe_that_fails_opens_again():
    """A failed probe opens it for a further duration, whatever failures are needed otherwise."""
    circuit = opened()
    probe = ask(circuit, 60).probe
    assert fail(circuit, 65, probe=probe) == "probe_failed"
    assert ask(circuit, 124) == Admit(remote=False, reason="probe_failed")
    assert ask(circuit, 125).probe


def test_nothing_else_decides_a_probe():
    """Neither transfers from before, nor a probe that was given up, close or open a half-open circuit."""
    circuit = opened()
    lost = ask(circuit, 60).probe
    second = ask(circuit, 120).probe
    assert second not in {0, lost}
    for probe in (0, lost):
        circuit.succeeded(probe)
        assert fail(circuit, 121, probe=probe) == ""
        assert circuit.state is BreakerState.HALF_OPEN
    circuit.succeeded(second)
    assert circuit.state is BreakerState.CLOSED


def test_a_lost_probe_is_replaced():
    """A probe without a result is given up after the duration; it cannot stick."""
    circuit = opened()
    ask(circuit, 60)
    assert not ask(circuit, 119).remote
    assert ask(circuit, 120).probe
    assert circuit.reason == "probe_timeout"


def test_a_probe_that_told_nothing_is_replaced_at_once():
    """A probe that failed by another's doing leaves the question open to the next request."""
    circuit = opened()
    probe = ask(circuit, 60).probe
    assert fail(circuit, 61, COLLATERAL, probe=probe) == ""
    assert ask(circuit, 61).probe


def test_incompatible_is_permanent_until_the_engine_id_changes():
    """One incompatible handshake opens it, no time closes it, a new engine does."""
    circuit = opened(failure=INCOMPATIBLE)
    assert (circuit.reason, circuit.until(RULES)) == ("incompatible", None)
    circuit.learn_engine_id("e1", asked=True)
    circuit.learn_engine_id("", asked=True)
    circuit.learn_engine_id("e2", asked=False)
    assert ask(circuit, 10**18) == Admit(remote=False, reason="incompatible")
    circuit.learn_engine_id("e2", asked=True)
    assert (circuit.state, circuit.reason) == (BreakerState.CLOSED, "engine_id_changed")


def test_incompatible_with_an_unknown_engine_is_probed():
    """Where the engine id is not known its change could not be seen, so time must heal."""
    circuit = opened(failure=INCOMPATIBLE, engine_id="")
    assert circuit.until(RULES) == 60
    assert fail(circuit, 30, INCOMPATIBLE) == ""
    circuit.learn_engine_id("e1", asked=True)
    assert circuit.until(RULES) == 60
    assert ask(circuit, 60).probe


def test_late_report_about_a_former_engine():
    """An incompatibility with an engine that is gone says nothing about the new one."""
    circuit = CircuitBreaker()
    circuit.learn_engine_id("e2", asked=True)
    assert fail(circuit, 0, INCOMPATIBLE, engine_id="e1") == ""
    assert fail(circuit, 0, INCOMPATIBLE, engine_id="e2") == "incompatible"


@pytest.mark.parametrize("half_open", [False, True])
def test_incompatible_counts_in_every_state(half_open):
    """A circuit that is open for failures becomes permanently open."""
    circuit = opened()
    if half_open:
        ask(circuit, 60)
    assert fail(circuit, 61, INCOMPATIBLE, engine_id="e1") == "incompatible"
    assert circuit.permanent


def test_other_failures_outlive_the_engine_id():
    """A restarted engine behind the same bad network is still probed first."""
    circuit = opened()
    circuit.learn_engine_id("e2", asked=True)
    assert circuit.state is BreakerState.OPEN


def test_failures_while_open_do_not_prolong_it():
    """What was under way when it opened does not keep it open."""
    circuit = opened()
    assert [fail(circuit, now) for now in range(40, 59)] == [""] * 19
    assert ask(circuit, 60).probe


def test_new_rules_hold_for_what_runs():
    """A shorter duration lets the probe through sooner, a lower threshold counts what is there."""
    assert ask(opened(), 10, replace(RULES, duration_ns=10)).probe
    circuit = CircuitBreaker()
    fail(circuit, 0)
    assert fail(circuit, 1, rules=replace(RULES, failures=2)) == "failures"


def test_memory_is_bounded_where_it_may_not_open():
    """However many failures come, only as many as are needed are kept."""
    circuit = CircuitBreaker()
    for _ in range(1000):
        circuit.failed(REFUSED, "", 0, RULES, 0)
    assert len(circuit._counted) == RULES.failures


@pytest.mark.parametrize("rehearsed", range(4))
def test_rehearsals_count_and_mark(rehearsed):
    """A quarantine that would not have come without a rehearsal is marked as one."""
    circuit = CircuitBreaker()
    for number in range(3):
        fail(circuit, number, replace(REFUSED, rehearsal=number < rehearsed))
    assert circuit.state is BreakerState.OPEN
    assert circuit.rehearsal == (rehearsed > 0)


def test_a_real_failure_of_the_probe_takes_the_mark_off():
    """What a real failure opens again is no rehearsal any more."""
    circuit = opened(failure=replace(REFUSED, rehearsal=True))
    assert circuit.rehearsal
    fail(circuit, 60, probe=ask(circuit, 60).probe)
    assert not circuit.rehearsal
