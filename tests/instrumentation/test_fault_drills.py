"""Which attempts a fault drill hits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation import orders
from penstock.instrumentation.core import constants
from penstock.instrumentation.orders import MODES, SLOW, Drill, DrillRefusedError, Drills, check_bounds
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2

from tests.support.manual_clock import SECOND, ManualClock

KV, EC = constants.CHANNEL_KV, constants.CHANNEL_EC
TRANSFER, HANDSHAKE = constants.FAILURE_MODE_TRANSFER, constants.FAILURE_MODE_HANDSHAKE
DRILL = Drill("d", KV, TRANSFER, 1.0, 60 * SECOND)


@pytest.fixture
def clock():
    """Give a clock that stands still."""
    return ManualClock()


@pytest.fixture
def running(clock):
    """Give the drills of an engine that allows them."""
    return Drills(allowed=True, random=Random(7), clock=clock)


def test_refused_unless_allowed(clock):
    """An engine that was not started for it refuses drills and says how to start it; none at all is fine."""
    fault_drills = Drills(allowed=False, clock=clock)
    fault_drills.replace([])
    with pytest.raises(DrillRefusedError, match="PENSTOCK_ALLOW_FAULTS=1"):
        fault_drills.replace([DRILL])
    assert fault_drills.hit(KV, TRANSFER, "p") is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mode": constants.FAILURE_MODE_LATE_READ}, "mode 11 cannot be rehearsed; use handshake"),
        (
            {"channel": EC, "mode": HANDSHAKE},
            "mode handshake of the encoder cache cannot be rehearsed; use transfer, load, probe, slow",
        ),
        (
            {"mode": constants.FAILURE_MODE_PROBE},
            "mode probe of KV cannot be rehearsed; use handshake, setup",
        ),
        ({"rate": 0.0}, r"rate 0.0 .* \(0, 1\]"),
        ({"rate": 1.1}, "rate 1.1"),
        ({"rate": float("nan")}, "rate nan"),
        ({"valid_for_ns": 0}, "at most 14400 s, not 0 s"),
        ({"valid_for_ns": orders.MAX_VALID_NS + SECOND}, "at most 14400 s, not 14401 s"),
        ({"delay_ns": -SECOND}, "delay -1 s"),
        ({"delay_ns": 61 * SECOND}, "delay 61 s; use at most 60 s"),
        ({"mode": SLOW}, "delay 0 s; .* more than 0 s with mode slow"),
    ],
)
def test_bounds(running, change, text):
    """A drill out of bounds is refused with a sentence, and those that run go on."""
    running.replace([DRILL])
    with pytest.raises(DrillRefusedError, match=f"drill bad: .*{text}"):
        running.replace([replace(DRILL, id="bad", **change)])
    assert [armed.drill for armed in running.active] == [DRILL]


def test_too_many(running):
    """The number of drills at once is bounded."""
    wanted = [replace(DRILL, id=str(number)) for number in range(17)]
    with pytest.raises(DrillRefusedError, match="17 fault drills at once; use at most 16"):
        running.replace(wanted)
    running.replace(wanted[:16])
    assert len(running.active) == 16


@pytest.mark.parametrize(
    ("drill", "attempt", "hits"),
    [
        (DRILL, (KV, TRANSFER, "p"), True),
        (DRILL, (EC, TRANSFER, "p"), False),
        (DRILL, (KV, HANDSHAKE, "p"), False),
        (replace(DRILL, peer="p"), (KV, TRANSFER, "p"), True),
        (replace(DRILL, peer="p"), (KV, TRANSFER, "q"), False),
        (replace(DRILL, mode=SLOW, delay_ns=SECOND), (KV, SLOW, "p"), True),
        (replace(DRILL, mode=SLOW, delay_ns=SECOND), (KV, TRANSFER, "p"), False),
    ],
)
def test_what_a_drill_fits(running, drill, attempt, hits):
    """Channel, mode and peer must fit."""
    running.replace([drill])
    assert running.hit(*attempt) == (drill if hits else None)


def test_ends_by_itself(clock, running):
    """A drill ends with its time, and no push of the same id brings it back."""
    running.replace([DRILL])
    clock.advance(30)
    running.replace([DRILL])
    assert [armed.ends_ns for armed in running.active] == [clock.now + 30 * SECOND]
    clock.advance(30)
    assert running.active == ()
    running.replace([DRILL])
    assert running.hit(KV, TRANSFER, "p") is None


def test_can_be_stopped_early(running):
    """A push without a drill ends it."""
    running.replace([DRILL])
    running.replace([])
    assert running.hit(KV, TRANSFER, "p") is None


def test_first_that_hits_wins(running):
    """Of several that fit, the first in the order of the push that hits is taken."""
    rare, sure = replace(DRILL, id="rare", rate=1e-9), replace(DRILL, id="sure")
    running.replace([rare, sure])
    assert running.hit(KV, TRANSFER, "p") == sure


def test_same_seed_same_choice(clock):
    """The choice is the random generator's alone."""

    def choices():
        fault_drills = Drills(allowed=True, random=Random(42), clock=clock)
        fault_drills.replace([replace(DRILL, rate=0.2)])
        return [fault_drills.hit(KV, TRANSFER, "p") is not None for _ in range(1000)]

    first = choices()
    assert first == choices()
    assert 150 < sum(first) < 250


def test_words_are_the_wires():
    """Every mode but slow goes by the word of the wire."""
    for mode, word in MODES.items():
        assert mode == SLOW or label(common_pb2.FailureMode, mode) == word


@given(
    rate=st.floats(allow_nan=True),
    valid=st.integers(-SECOND, 10**14),
    delay=st.integers(-SECOND, 10**11),
    mode=st.integers(0, 15),
)
def test_whatever_passes_the_check_ends(rate, valid, delay, mode):
    """A drill that is accepted hits at most while it runs."""
    drill = Drill("d", KV, mode, rate, valid, delay_ns=delay)
    clock = ManualClock()
    fault_drills = Drills(allowed=True, random=Random(1), clock=clock)
    try:
        check_bounds(drill)
    except DrillRefusedError:
        return
    fault_drills.replace([drill])
    clock.now += drill.valid_for_ns
    assert fault_drills.hit(KV, mode, "p") is None
