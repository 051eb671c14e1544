"""Failures, overlaps and interruptions: one event of the right rebalance, and no exception into vLLM."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks.registry import registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.eplb.hook import EplbHook
from penstock.instrumentation.vllm.eplb.rebalance import Rebalance, RebalanceSite

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.eplb import async_worker, rebalance_execute

from tests.support.eplb.state import STREAM, move, receive, take_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder


def _raise(error: BaseException) -> None:
    raise error


def _results(recorder: Recorder) -> dict[str, int]:
    return {rebalance.model: rebalance.result for rebalance in recorder.take("eplb_rebalance")}


def test_a_rebalance_that_ends_where_the_next_begins(
    make_state: Callable[..., Any], recorder: Recorder
) -> None:
    """VLLM starts an overdue rebalance in the step that places the last layer of the previous, successful one."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()
    receive(model, 0)
    state.next_step = lambda _profile: take_over(state)
    state.step()
    receive(model, 1)

    def overdue(_profile: bool) -> None:
        take_over(state)
        state.rearrange()

    state.next_step = overdue
    state.step()
    (rebalance,) = recorder.take("eplb_rebalance")
    assert (rebalance.result, rebalance.error_text, len(rebalance.layers)) == (c.TRANSFER_RESULT_OK, "", 2)
    assert model.rebalanced


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_of_one_model_is_emitted_once(
    make_state: Callable[..., Any], recorder: Recorder, *, asynchronous: bool
) -> None:
    """The model before succeeded, the model itself failed, the model after was not started."""
    state = make_state("first", "second", "third", asynchronous=asynchronous)
    first, second, _ = state.model_states.values()
    second.communicator.failure = error = RuntimeError("Connection closed by peer [127.0.0.1]:1")
    if asynchronous:
        state.step()
        for layer in range(2):
            receive(first, layer)
            state.next_step = lambda _profile: take_over(state)
            state.step()
        state.rearrange_event.wait = lambda **_: receive(second, 0)
        with pytest.raises(RuntimeError) as raised:
            async_worker.transfer_run_periodically(state=state, **{STREAM: torch.Stream(device="cpu")})
        state.next_step = lambda _profile: None
    else:
        with pytest.raises(RuntimeError) as raised:
            state.step()
    assert raised.value is error
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_TRANSFER, "rank:1")
    ok, bad = c.TRANSFER_RESULT_OK, c.TRANSFER_RESULT_ERROR
    assert _results(recorder) == {"first": ok, "second": bad, "third": bad}
    texts = {rebalance.model: rebalance.error_text for rebalance in recorder.take("eplb_rebalance")}
    assert "another model" in texts["third"]
    state.next_step = lambda _profile: None
    state.step()
    assert len(recorder.take("eplb_rebalance")) == 3


def test_a_group_that_breaks_outside_a_transfer(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """In asynchronous mode a dead rank fails the forward pass's thread, where the ranks agree at every step."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()
    model.communicator.execute = lambda: None
    error = RuntimeError("Connection closed by peer [127.0.0.1]:1")
    state.next_step = lambda _profile: _raise(error)
    with pytest.raises(RuntimeError) as raised:
        state.step()
    assert raised.value is error
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_EXCEPTION, "unknown")
    assert failure.error_type == c.ERROR_TYPE_REMOTE_RESET
    assert _results(recorder) == {"moe": c.TRANSFER_RESULT_ERROR}


def test_a_rebalance_that_failed_tells_no_balance_after_it() -> None:
    """A failed rebalance reports the balancedness before, not that of the map it did not apply."""
    rebalance = Rebalance(RebalanceSite(0, "Gloo", "moe"), c.EPLB_TRIGGER_INTERVAL, False, 3, 2)
    rebalance.set_balancedness(0.87, 0.96)
    whole = rebalance.fields(failed=False, reason="", layers=[])
    assert (whole["balancedness_before"], whole["balancedness_after"]) == (0.87, 0.96)
    broken = rebalance.fields(failed=True, reason="stopped", layers=[])
    assert broken["balancedness_before"] == 0.87
    assert "balancedness_after" not in broken


def test_a_step_that_fails_without_a_rebalance_is_none(
    make_state: Callable[..., Any], recorder: Recorder
) -> None:
    """VLLM's error is raised, and no event is emitted."""
    state = make_state(asynchronous=True)
    state.next_step = lambda _profile: _raise(ValueError("a step"))
    with pytest.raises(ValueError, match="a step"):
        state.step()
    assert (recorder.events, recorder.transfers) == ([], [])


def test_the_layers_failure_after_that_of_the_step(
    make_state: Callable[..., Any], recorder: Recorder
) -> None:
    """The receiving thread fails after the forward pass; its failure names the rank."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()

    def main_thread_first() -> None:
        state.next_step = lambda _profile: _raise(RuntimeError("broken"))
        with pytest.raises(RuntimeError, match="broken"):
            state.step()
        raise RuntimeError("Connection closed by peer")

    model.communicator.execute = main_thread_first
    with pytest.raises(RuntimeError, match="Connection"):
        receive(model, 0)
    assert [(f.mode, f.peer.address) for f in recorder.take("transfer_failure")] == [
        (c.FAILURE_MODE_EXCEPTION, "unknown"),
        (c.FAILURE_MODE_TRANSFER, "rank:1"),
    ]
    assert len(recorder.take("eplb_rebalance")) == 1


THREE = np.array([0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("after", "peer", "direction", "said"),
    [
        # Rank 0 receives expert 2 from rank 1, and sends expert 0 to rank 2: either may be the one that failed.
        ([1, 2, 2, 3, 0, 5], "unknown", c.DIRECTION_RECEIVE, "receiving from ranks 1, sending to ranks 2"),
        ([0, 2, 2, 3, 4, 5], "rank:1", c.DIRECTION_RECEIVE, ""),
        # A rank that only sends.
        ([0, 1, 2, 3, 0, 5], "rank:2", c.DIRECTION_SEND, ""),
        ([0, 1, 0, 3, 0, 5], "unknown", c.DIRECTION_SEND, "sending to ranks 1, 2"),
    ],
)
def test_the_blamed_rank(
    make_state: Callable[..., Any],
    recorder: Recorder,
    after: list[int],
    peer: str,
    direction: int,
    said: str,
) -> None:
    """A failure names a rank only if it was the single partner; a failed transfer is counted."""
    state = make_state()
    (model,) = state.model_states.values()
    model.communicator.failure = RuntimeError("broken")
    state.moves = lambda: move(model, 1, old=THREE, new=np.array(after))
    with pytest.raises(RuntimeError, match="broken"):
        state.step()
    (failure,) = recorder.take("transfer_failure")
    assert (failure.peer.address, failure.direction, failure.item) == (peer, direction, "1")
    assert failure.error_text == (f"{said}: broken" if said else "broken")
    (sample,) = recorder.transfers
    assert (sample["peer"], sample["direction"]) == (peer, direction)
    assert (sample["result"], sample["bytes"]) == (c.TRANSFER_RESULT_ERROR, 0)


def test_two_models_share_the_pause(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """The pauses of a rank's rebalances add up to the forward pass's pause, not a multiple of it."""
    state = make_state("main", "draft")
    began = time.monotonic_ns()
    state.step()
    whole = time.monotonic_ns() - began
    found = recorder.take("eplb_rebalance")
    pauses = [each.pause_nano for each in found]
    layers = [sum(layer.duration_nano for layer in each.layers) for each in found]
    assert all(pause >= layer > 0 for pause, layer in zip(pauses, layers, strict=True))
    assert sum(pauses) <= whole


def test_what_was_under_way_at_a_pause_is_forgotten(
    make_state: Callable[..., Any], recorder: Recorder
) -> None:
    """Paused in the middle and resumed later, the rest of that rebalance is neither emitted nor attributed to the next one."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()
    receive(model, 0)
    before = len(recorder.transfers)
    runtime.pause("test", paused=True)
    try:
        state.next_step = lambda _profile: take_over(state)
        state.step()
        receive(model, 1)
        state.step()
        state.next_step = lambda _profile: state.rearrange()
        state.step()
    finally:
        runtime.pause("test", paused=False)
    receive(model, 0)
    state.next_step = lambda _profile: take_over(state)
    state.step()
    assert (recorder.events, len(recorder.transfers)) == ([], before)
    assert list(recorder.snapshot().in_flight) == []
    receive(model, 1)
    state.step()
    state.next_step = lambda _profile: state.rearrange()
    state.step()
    for layer in range(2):
        receive(model, layer)
        state.next_step = lambda _profile: take_over(state)
        state.step()
    (rebalance,) = recorder.take("eplb_rebalance")
    assert (rebalance.result, len(rebalance.layers)) == (c.TRANSFER_RESULT_OK, 2)


def test_a_thread_that_ends_while_paused_is_not_emitted(
    make_state: Callable[..., Any], recorder: Recorder
) -> None:
    """`agentctl pause`: no telemetry; vLLM's exception is its own."""
    state = make_state(asynchronous=True)
    state.step()
    state.rearrange_event.wait = lambda **_: _raise(TimeoutError("timed out"))
    runtime.pause("test", paused=True)
    try:
        with pytest.raises(TimeoutError):
            async_worker.transfer_run_periodically(state=state, **{STREAM: torch.Stream(device="cpu")})
    finally:
        runtime.pause("test", paused=False)
    assert recorder.events == []


def test_a_drain_that_fails(
    make_state: Callable[..., Any], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective's error while draining closes the rebalance."""
    state = make_state(asynchronous=True)
    state.step()
    monkeypatch.setattr(state, "_all_ranks_result_ready", lambda _model: _raise(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        state.drain_async()
    assert len(recorder.take("transfer_failure")) == 1
    assert _results(recorder) == {"moe": c.TRANSFER_RESULT_ERROR}


def test_fewer_ranks_than_before(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """A scale-down's old map has more rows: the balancedness before is that of the old ranks."""
    state = make_state()
    (model,) = state.model_states.values()
    old = torch.tensor([[0, 1, 2, 3, 0, 1]])

    def moves() -> None:
        # Three ranks of two rows become two; all load is on experts 2 and 3, which are rank 1's.
        state.policy.rebalance_experts(torch.tensor([[0, 0, 8, 8]]), 4, 1, 1, 2, old)
        move(model, 1)

    state.moves = moves
    state.rearrange(rank_mapping={0: 0, 1: 1, 2: -1})
    (rebalance,) = recorder.take("eplb_rebalance")
    assert rebalance.balancedness_before == pytest.approx((16 / 3) / 16)
    assert rebalance.balancedness_after == pytest.approx(1.0)


def test_how_long_nccl_takes_is_not_known(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """Without a stream of its own the call returns before the device has finished: the duration is 0."""
    state = make_state()
    (model,) = state.model_states.values()
    state.moves = lambda: move(model, 1, device="meta")
    state.step()
    (rebalance,) = recorder.take("eplb_rebalance")
    assert [layer.duration_nano for layer in rebalance.layers] == [0]
    (sample,) = recorder.transfers
    assert (sample["duration_nano"], sample["bytes"]) == (0, 20)


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("name", ["TransferMetadata", "AsyncEplbLayerResult"])
def test_a_vllm_whose_records_differ(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The hook also requires the attributes that it reads."""
    owner = rebalance_execute if name == "TransferMetadata" else async_worker
    monkeypatch.setattr(owner, name, type(name, (), {"__init__": lambda self, other: None}))
    assert not registry.install(EplbHook())
    (state,) = [state for state in registry.report() if state.name == "eplb"]
    assert f"{name} has no parameter" in state.reason
