"""The gates of a request are a partition of the time to its first token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.requests.gates import Gate, RequestGates
from penstock.proto.v1.events_pb2 import Gates

Edge: TypeAlias = Callable[[RequestGates], object]

ARRIVAL = 1_000


def kv_wait(now: int) -> Edge:
    """Return the begin of a wait for KV."""
    return lambda gates: gates.on_wait(now, encoder=False)


def kv_ready(now: int) -> Edge:
    """Return its end."""
    return lambda gates: gates.on_ready(now, encoder=False)


def encoder_wait(now: int) -> Edge:
    """Return the begin of a wait for encoder outputs."""
    return lambda gates: gates.on_wait(now, encoder=True)


def encoder_ready(now: int) -> Edge:
    """Return its end."""
    return lambda gates: gates.on_ready(now, encoder=True)


def stage(gate: int, at: int, now: int) -> Edge:
    """Return what a worker reports."""
    return lambda gates: gates.on_stage(gate, at, now)


def loaded(start: int, end: int, now: int) -> Edge:
    """Return the load of a step."""
    return lambda gates: gates.on_loaded(start, end, now)


def scheduled(now: int) -> Edge:
    """Return the first step."""
    return lambda gates: gates.on_scheduled(now)


def lost(until: int, now: int) -> Edge:
    """Return a loss."""
    return lambda gates: gates.on_lost(until, now)


def computed(tokens: int, now: int) -> Edge:
    """Return the end of a step."""
    return lambda gates: gates.on_computed(tokens, now)


QUEUED, STARTED, MOVING = Gate.HANDSHAKE_QUEUE, Gate.PEER, Gate.TRANSFER

STORIES: dict[str, tuple[list[Edge], int, dict[str, int]]] = {
    "it has nothing to wait for but room": ([scheduled(1_010)], 1_030, {"queue": 10, "own_prefill": 20}),
    "its KV is loaded": (
        [kv_wait(1_005), stage(MOVING, 1_020, 1_050), kv_ready(1_060), scheduled(1_062)],
        1_070,
        {"queue": 7, "peer": 15, "transfer": 40, "own_prefill": 8},
    ),
    "its handshake waits behind another's": (
        [
            kv_wait(1_005),
            stage(QUEUED, 1_006, 1_010),
            stage(STARTED, 1_100, 1_110),
            stage(MOVING, 1_104, 1_110),
            kv_ready(1_110),
            scheduled(1_110),
        ],
        1_112,
        {"queue": 5, "peer": 1 + 4, "handshake_queue": 94, "transfer": 6, "own_prefill": 2},
    ),
    "its handshake never begins": (
        [kv_wait(1_000), stage(QUEUED, 1_001, 1_010)],
        1_200,
        {"peer": 1, "handshake_queue": 199},
    ),
    "two ranks report, the first counts": (
        [
            kv_wait(1_000),
            stage(QUEUED, 1_000, 1_010),
            stage(STARTED, 1_020, 1_050),
            stage(QUEUED, 1_001, 1_050),
            stage(STARTED, 1_030, 1_050),
            stage(MOVING, 1_040, 1_050),
            stage(STARTED, 1_045, 1_050),
            kv_ready(1_050),
        ],
        1_050,
        {"handshake_queue": 20, "peer": 20, "transfer": 10},
    ),
    "its load fails and it computes the prompt here": (
        [
            kv_wait(1_000),
            lost(64, 1_050),
            kv_ready(1_050),
            scheduled(1_060),
            computed(32, 1_070),
            computed(64, 1_080),
            computed(96, 1_090),
        ],
        1_095,
        {"peer": 50, "recompute": 30, "own_prefill": 15},
    ),
    "it is preempted in the middle": (
        [scheduled(1_010), lost(32, 1_020), computed(16, 1_040), computed(48, 1_050)],
        1_060,
        {"queue": 10, "own_prefill": 10 + 10, "recompute": 30},
    ),
    "it is preempted before it has computed anything": (
        [scheduled(1_010), lost(0, 1_020), computed(0, 1_040), computed(16, 1_050)],
        1_060,
        {"queue": 10, "own_prefill": 10 + 10, "recompute": 30},
    ),
    "it is preempted twice, the longer loss counts": (
        [scheduled(1_000), lost(64, 1_010), lost(16, 1_020), computed(32, 1_030), computed(64, 1_040)],
        1_050,
        {"own_prefill": 20, "recompute": 30},
    ),
    "it loads again after a loss": (
        [
            scheduled(1_000),
            lost(64, 1_010),
            kv_wait(1_020),
            computed(64, 1_030),
            stage(MOVING, 1_030, 1_040),
            kv_ready(1_040),
            computed(80, 1_050),
        ],
        1_060,
        {"own_prefill": 20, "recompute": 20, "peer": 10, "transfer": 10},
    ),
    "it waits for an encoder, runs, and waits for another": (
        [
            encoder_wait(1_000),
            encoder_ready(1_030),
            scheduled(1_040),
            encoder_wait(1_050),
            encoder_ready(1_060),
        ],
        1_070,
        {"encoder": 40, "queue": 10, "own_prefill": 20},
    ),
    "it waits for both": (
        [kv_wait(1_000), encoder_wait(1_010), kv_ready(1_030), encoder_ready(1_040), scheduled(1_040)],
        1_040,
        {"peer": 30, "encoder": 10},
    ),
    "two loads one after the other each begin at the peer": (
        [kv_wait(1_000), stage(MOVING, 1_010, 1_020), kv_ready(1_020), kv_wait(1_030), kv_ready(1_050)],
        1_050,
        {"peer": 10 + 20, "transfer": 10, "queue": 10},
    ),
    "a step loads from this machine, on two ranks": (
        [scheduled(1_010), loaded(1_020, 1_040, 1_060), loaded(1_025, 1_045, 1_060)],
        1_060,
        {"queue": 10, "transfer": 25, "own_prefill": 10 + 15},
    ),
    "a load that was no wait of it": (
        [stage(MOVING, 1_005, 1_006), loaded(1_005, 1_006, 1_007)],
        1_010,
        {"queue": 10},
    ),
    "a worker's clock is ahead": (
        [kv_wait(1_000), stage(MOVING, 9_000, 1_020), kv_ready(1_050)],
        1_050,
        {"peer": 20, "transfer": 30},
    ),
    "a worker's clock is behind": (
        [kv_wait(1_010), stage(MOVING, 5, 1_020), kv_ready(1_050)],
        1_050,
        {"queue": 10, "transfer": 40},
    ),
    "an end without a beginning": ([kv_ready(1_010), encoder_ready(1_020)], 1_030, {"queue": 30}),
}


@pytest.mark.parametrize("story", sorted(STORIES))
def test_each_moment_is_at_one_gate(story: str) -> None:
    """What a request waits for last, as far as it is known, has the moment."""
    edges, end, expected = STORIES[story]
    gates = RequestGates(ARRIVAL)
    for edge in edges:
        edge(gates)
    assert gates.end(end) == end
    assert gates.fields() == {f"{gate}_nano": nano for gate, nano in expected.items()}
    assert sum(expected.values()) == end - ARRIVAL


def test_the_fields_are_those_of_the_wire() -> None:
    """Each gate has its field."""
    named = {f"{name.lower()}_nano": number for name, number in vars(Gate).items() if name.isupper()}
    fields = [each.name for each in Gates.DESCRIPTOR.fields]
    assert list(named) == fields
    assert list(named.values()) == list(range(len(fields)))


def test_nothing_counts_after_the_end() -> None:
    """A preemption after the first token takes nothing back."""
    gates = RequestGates(ARRIVAL)
    gates.on_scheduled(1_010)
    assert gates.end(1_020) == 1_020
    gates.on_lost(64, 1_030)
    gates.on_wait(1_040, encoder=False)
    assert gates.end(1_050) == 1_020
    assert gates.fields() == {"queue_nano": 10, "own_prefill_nano": 10}


def test_an_interruption_makes_them_unknown() -> None:
    """What happened during a pause is not known, so neither are the gates."""
    gates = RequestGates(ARRIVAL, interruptions=3)
    gates.on_scheduled(1_010)
    assert gates.end(1_020, interruptions=4) == 1_020
    assert gates.fields() is None


def test_an_interruption_after_the_first_token_changes_nothing() -> None:
    """The first token had come before."""
    gates = RequestGates(ARRIVAL, interruptions=3)
    gates.end(1_020, interruptions=3)
    gates.end(1_030, interruptions=4)
    assert gates.fields() == {"queue_nano": 20}


def test_a_clock_that_is_set_back_does_not_take_time_back() -> None:
    """The end is then that of the last edge, so that the sum is still the whole."""
    gates = RequestGates(ARRIVAL)
    gates.on_scheduled(1_500)
    assert gates.end(200) == 1_500
    assert gates.fields() == {"queue_nano": 500}


_TIME = st.integers(0, 5_000)
_EDGES = st.one_of(
    st.builds(lambda now: (now, [kv_wait(now)]), _TIME),
    st.builds(lambda now: (now, [kv_ready(now)]), _TIME),
    st.builds(lambda now: (now, [encoder_wait(now)]), _TIME),
    st.builds(lambda now: (now, [encoder_ready(now)]), _TIME),
    st.builds(lambda gate, at, now: (now, [stage(gate, at, now)]), st.sampled_from([QUEUED, STARTED, MOVING]), _TIME, _TIME),
    st.builds(lambda start, end, now: (now, [loaded(start, end, now)]), _TIME, _TIME, _TIME),
    st.builds(lambda now: (now, [scheduled(now)]), _TIME),
    st.builds(lambda until, now: (now, [lost(until, now)]), st.integers(0, 9), _TIME),
    st.builds(lambda tokens, now: (now, [computed(tokens, now)]), st.integers(0, 9), _TIME),
)  # fmt: skip


@given(st.lists(_EDGES, max_size=30), st.booleans(), _TIME)
def test_the_sum_is_the_time_to_the_end(
    edges: list[tuple[int, list[Edge]]], in_order: bool, last: int
) -> None:
    """Whatever the edges are, and in whatever order clocks give them: no gate is negative, and the sum is the whole."""
    if in_order:
        edges = sorted(edges, key=lambda edge: edge[0])
        last = max([last, *(now for now, _ in edges)])
    gates = RequestGates(ARRIVAL)
    before = 0
    for _, found in edges:
        for edge in found:
            edge(gates)
        fields = gates.fields() or {}
        assert sum(fields.values()) >= before
        before = sum(fields.values())
    end = gates.end(last)
    fields = gates.fields() or {}
    assert all(nano > 0 for nano in fields.values())
    assert sum(fields.values()) == end - ARRIVAL
    if in_order:
        assert end == max(last, ARRIVAL)
