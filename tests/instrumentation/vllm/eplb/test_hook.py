"""The hook on vLLM's balancer: it fits, comes out again, and tells one rebalance from its trigger to its end."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks.registry import registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.eplb.hook import EplbHook

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.eplb import async_worker, eplb_state, rebalance_execute
    from vllm.distributed.eplb.policy import DefaultEplbPolicy

from tests.support.eplb.state import NEW, STREAM, move

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

EplbState = eplb_state.EplbState


def _places() -> list[Any]:
    return [
        EplbState.add_model,
        EplbState.step,
        EplbState.rearrange,
        EplbState.drain_async,
        eplb_state._move_to_workspace,
        async_worker.transfer_run_periodically,
        async_worker.AsyncEplbLayerResult,
        rebalance_execute.move_to_buffer,
        vars(DefaultEplbPolicy)["rebalance_experts"],
    ]


@pytest.mark.usefixtures("recorder")
def test_it_fits_and_comes_out() -> None:
    """Installed, everything is wrapped; uninstalled, vLLM is as it was."""
    before = _places()
    hook = EplbHook()
    assert [unmet for each in hook.requires() if (unmet := each.unmet())] == []
    hook.install()
    assert all(now is not then for now, then in zip(_places(), before, strict=True))
    hook.uninstall()
    assert _places() == before


@pytest.mark.usefixtures("recorder")
def test_a_vllm_that_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out with a reason; nothing is wrapped."""
    monkeypatch.delattr(EplbState, "drain_async")
    step = EplbState.step
    assert not registry.install(EplbHook())
    (state,) = [state for state in registry.report() if state.name == "eplb"]
    assert "EplbState.drain_async is missing" in state.reason
    assert EplbState.step is step


def test_a_synchronous_rebalance(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """One event with its layers, one transfer sample for each source rank, the pause, the balance."""
    state = make_state()
    state.step()
    (told,) = recorder.take("eplb_rebalance")
    (event,) = recorder.events
    assert (event.component, event.rank) == (c.COMPONENT_WORKER, 3)
    assert (told.trigger, told.result) == (c.EPLB_TRIGGER_INTERVAL, c.TRANSFER_RESULT_OK)
    assert (told.communicator, told.model, told.asynchronous) == ("Loopback", "moe", False)
    assert [layer.layer for layer in told.layers] == [0, 1]
    first = told.layers[0]
    assert (first.experts_unchanged, first.experts_received_locally, first.experts_received_remotely) == (
        1,
        0,
        1,
    )
    assert (list(first.recv_expert_ids), list(first.recv_dst_rows), first.bytes) == ([2], [1], 20)
    assert [(row.rank, row.bytes) for row in first.from_ranks] == [(1, 20)]
    # Experts 0 and 1 (10 of 12 tokens) were on one rank.
    assert told.balancedness_before == pytest.approx(6 / 10)
    assert told.HasField("balancedness_after")
    assert told.pause_nano >= told.layers[0].duration_nano + told.layers[1].duration_nano > 0
    assert [(t["peer"], t["bytes"], t["descriptors"], t["rank"]) for t in recorder.transfers] == [
        ("rank:1", 20, 1, 3)
    ] * 2


def test_an_asynchronous_rebalance(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """Layers are emitted once received; the rebalance ends when its last layer is placed."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()
    assert recorder.events == []
    for layer in range(2):
        metadata = move(model, layer, stream=torch.Stream(device="cpu"))
        assert len(recorder.transfers) == layer  # its stream is not through
        (flying,) = recorder.snapshot().in_flight
        assert (flying.channel, flying.peer.address) == (c.CHANNEL_EPLB, "rank:1")
        model.pending_result = async_worker.AsyncEplbLayerResult(
            layer_idx=layer,
            new_physical_to_logical_map=torch.from_numpy(NEW[layer]),
            transfer_metadata=metadata,
            consumed_event=SimpleNamespace(record=lambda: None),
        )
        assert len(recorder.transfers) == layer + 1
        assert recorder.events == []

        def take_over(_profile: bool) -> None:
            eplb_state._move_to_workspace(model, 0)

        state.next_step = take_over
        state.step()
    (told,) = recorder.take("eplb_rebalance")
    assert (told.result, told.asynchronous, len(told.layers)) == (c.TRANSFER_RESULT_OK, True, 2)
    assert told.duration_nano >= told.pause_nano > 0
    assert list(recorder.snapshot().in_flight) == []


def test_a_rank_that_leaves(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """VLLM's own stop is a failed rebalance with the layers received so far."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()
    move(model, 0)
    model.rebalanced = False
    state.next_step = lambda _profile: None
    state.step()
    (told,) = recorder.take("eplb_rebalance")
    assert (told.result, len(told.layers)) == (c.TRANSFER_RESULT_ERROR, 1)
    assert "a rank left" in told.error_text


def test_a_communicator_that_fails(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """A failure with mode, layer and peer, a rebalance with result error, and vLLM's exception as it was."""
    state = make_state()
    (model,) = state.model_states.values()
    model.communicator.failure = error = RuntimeError("Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError) as raised:
        state.step()
    assert raised.value is error
    (failure,) = recorder.take("transfer_failure")
    assert (failure.channel, failure.mode) == (c.CHANNEL_EPLB, c.FAILURE_MODE_TRANSFER)
    assert (failure.error_type, failure.peer.address, failure.item) == (
        c.ERROR_TYPE_REMOTE_RESET,
        "rank:1",
        "0",
    )
    (told,) = recorder.take("eplb_rebalance")
    assert (told.result, told.error_class) == (c.TRANSFER_RESULT_ERROR, "RuntimeError")
    assert list(recorder.snapshot().in_flight) == []


def test_a_thread_that_fails(
    make_state: Callable[..., Any], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM only logs the end of its thread; Penstock emits a failed rebalance."""
    state = make_state(asynchronous=True)
    state.step()
    error = TimeoutError("timed out")

    def broken() -> None:
        raise error

    monkeypatch.setattr(state.rearrange_event, "wait", lambda **_: broken())
    with pytest.raises(TimeoutError):
        async_worker.transfer_run_periodically(state=state, **{STREAM: torch.Stream(device="cpu")})
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_EXCEPTION, c.ERROR_TYPE_TIMEOUT)
    (told,) = recorder.take("eplb_rebalance")
    assert told.error_class == "TimeoutError"


def test_a_drained_rebalance(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """A rebalance discarded by elastic expert parallelism is a failed one."""
    state = make_state(asynchronous=True)
    (model,) = state.model_states.values()
    state.step()
    model.rebalanced = False
    state.drain_async()
    (told,) = recorder.take("eplb_rebalance")
    assert told.result == c.TRANSFER_RESULT_ERROR
    assert told.error_text.startswith("drained")


def test_triggers(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """The interval, a change of ranks, any other caller."""
    state = make_state()
    state.step()
    state.rearrange(rank_mapping={0: 0, 1: -1})
    state.rearrange()
    assert [told.trigger for told in recorder.take("eplb_rebalance")] == [
        c.EPLB_TRIGGER_INTERVAL,
        c.EPLB_TRIGGER_ELASTIC,
        c.EPLB_TRIGGER_OTHER,
    ]
    assert all(told.pause_nano > 0 for told in recorder.take("eplb_rebalance"))


def test_a_profile_run_is_no_rebalance(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """Neither a profile run nor a step without moves is a rebalance."""
    state = make_state()
    (model,) = state.model_states.values()
    state.next_step = lambda profile: move(model, 0) if profile else None
    state.step(is_profile=True)
    state.step()
    state.rearrange(is_profile=True)
    assert recorder.events == []
    assert recorder.transfers == []


def test_paused_it_is_passive(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """Paused hooks only call vLLM, also for rebalances that started before."""
    state = make_state()
    runtime.pause("test", paused=True)
    try:
        state.step()
    finally:
        runtime.pause("test", paused=False)
    assert (recorder.events, recorder.transfers) == ([], [])
    state.step()
    assert len(recorder.take("eplb_rebalance")) == 1


def test_facts(make_state: Callable[..., Any], recorder: Recorder) -> None:
    """The snapshot has the balancer's settings and this worker's identity."""
    make_state(asynchronous=True).step()
    facts = recorder.snapshot().eplb
    assert (facts.enabled, facts.asynchronous, facts.communicator) == (True, True, "torch_gloo")
    assert (facts.step_interval, facts.window_size) == (3000, 1000)
    assert (runtime.identity.process, runtime.identity.engine, runtime.identity.rank) == ("worker", "1", 3)
