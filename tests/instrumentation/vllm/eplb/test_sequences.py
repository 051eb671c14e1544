"""Any order of what can happen to asynchronous rebalances of two models."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime

from tests.support.eplb.state import receive, take_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

ACTIONS = ("step", "receive", "take over", "stop", "drain", "break", "pause", "resume")


def _fail() -> None:
    raise RuntimeError("Connection closed by peer")


def _step(state: Any, what: Callable[[], None]) -> None:
    """Step as vLLM does: place received layers, and start the next rebalance when none is open."""

    def step(_profile: bool) -> None:
        what()
        if not any(model.rebalanced for model in state.model_states.values()):
            state.rearrange()

    state.next_step = step
    try:
        state.step()
    except RuntimeError:
        for model in state.model_states.values():
            model.rebalanced, model.pending_result = False, None


def _do(state: Any, action: str) -> None:
    models = list(state.model_states.values())
    at_it = [model for model in models if model.rebalanced]
    if action in {"pause", "resume"}:
        runtime.pause("test", paused=action == "pause")
    elif action == "receive":
        if at_it and at_it[0].pending_result is None:
            receive(at_it[0], at_it[0].placed)
    elif action == "drain":
        for model in models:
            model.rebalanced, model.pending_result = False, None
        state.drain_async()
    elif action == "stop" and at_it and at_it[0].pending_result is None:
        at_it[0].rebalanced = False
    else:
        _step(state, {"take over": lambda: take_over(state), "break": _fail}.get(action, lambda: None))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.sampled_from(ACTIONS), max_size=40))
@example(actions=["step", *["receive", "take over"] * 4, "step"])
def test_each_rebalance_is_emitted_at_most_once(
    make_state: Callable[..., Any], recorder: Recorder, actions: list[str]
) -> None:
    """Successful ones have all layers, failed ones a reason; pauses add up; nothing stays in flight."""
    recorder.events.clear()
    recorder.transfers.clear()
    state = make_state("main", "draft", asynchronous=True)
    state.rearrange_event.record = lambda: None
    began = time.monotonic_ns()
    try:
        for action in actions:
            _count(state)
            _do(state, action)
    finally:
        runtime.pause("test", paused=False)
    if {"stop", "drain", "break"}.isdisjoint(actions):
        assert all(each.result == c.TRANSFER_RESULT_OK for each in recorder.take("eplb_rebalance"))
    for model in state.model_states.values():
        model.rebalanced = False
    state.drain_async()
    told = recorder.take("eplb_rebalance")
    assert len({(each.model, each.start_time_unix_nano) for each in told}) == len(told)
    for each in told:
        layers = [layer.layer for layer in each.layers]
        assert layers == list(range(len(layers)))
        if each.result == c.TRANSFER_RESULT_OK:
            assert (len(layers), each.error_text) == (2, "")
        else:
            assert each.error_text
        assert each.pause_nano <= each.duration_nano
    assert sum(each.pause_nano for each in told) <= time.monotonic_ns() - began
    assert list(recorder.snapshot().in_flight) == []


def _count(state: Any) -> None:
    """Note which layer each model's rebalance receives next."""
    for model in state.model_states.values():
        if not model.rebalanced:
            model.placed = 0
        elif model.pending_result is not None:
            model.placed = model.pending_result.layer_idx + 1
