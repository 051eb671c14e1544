"""An ``EplbState`` of vLLM's on one rank of two, without the group that vLLM's own parts talk over."""

from __future__ import annotations

import inspect
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from penstock.instrumentation.vllm.compat import MOVE_STREAM

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.eplb import async_worker, eplb_state, eplb_utils, rebalance_execute
    from vllm.distributed.eplb.eplb_communicator import EplbCommunicator

if TYPE_CHECKING:
    import pytest

OLD, NEW = np.array([[0, 1, 2, 3]] * 2), np.array([[0, 2, 1, 3]] * 2)
"""Experts of two layers before and after: each rank of two gets one from the other."""

EplbState = eplb_state.EplbState


# Until 0.30 EPLB waits for CUDA's own events, which PyTorch has only for CUDA.
if "cuda.Event" in inspect.getsource(eplb_utils.CpuGpuEvent):
    torch.cuda.Event = torch.Event

# Until 0.30 it has another name.
STREAM = next(
    each for each in MOVE_STREAM if each in inspect.signature(rebalance_execute.move_to_buffer).parameters
)


class Loopback(EplbCommunicator):
    """Moves nothing; ends as *failure* says."""

    failure: BaseException | None = None

    def add_send(self, tensors: Any, dst_rank: int, expert_id: int) -> None:
        """Take a send."""

    def add_recv(self, tensors: Any, src_rank: int, expert_id: int) -> None:
        """Take a receive."""

    def execute(self) -> None:
        """Fail, or do nothing."""
        if self.failure is not None:
            raise self.failure


def move(
    model: Any,
    layer: int,
    stream: Any = None,
    *,
    old: np.ndarray = OLD[0],
    new: np.ndarray = NEW[0],
    rank: int = 0,
    device: str = "cpu",
) -> Any:
    """Move a layer by vLLM's own function."""
    return rebalance_execute.move_to_buffer(
        num_local_experts=2,
        old_indices=old,
        new_indices=new,
        expert_weights=[torch.zeros(2, 5, device=device)],
        expert_weights_buffers=[torch.zeros(2, 5, device=device)],
        **{STREAM: stream},
        ep_rank=rank,
        communicator=model.communicator,
        layer_idx=layer,
    )


def receive(model: Any, layer: int) -> None:
    """Receive a layer as vLLM's thread does."""
    metadata = move(model, layer, stream=torch.Stream(device="cpu"))
    model.pending_result = async_worker.AsyncEplbLayerResult(
        layer_idx=layer,
        new_physical_to_logical_map=torch.from_numpy(NEW[layer]),
        transfer_metadata=metadata,
        consumed_event=SimpleNamespace(record=lambda: None),
    )


def take_over(state: Any) -> None:
    """Put what has been received in its place, as ``step`` does."""
    for model in state.model_states.values():
        if model.pending_result is not None:
            eplb_state._move_to_workspace(model, 0)


def make_state(*names: str, asynchronous: bool = False) -> Any:
    """Build a state with models of those names; ``next_step`` is what its steps do (rearrange), ``moves`` what ``rearrange`` does."""
    config = SimpleNamespace(
        rank=3,
        data_parallel_index=1,
        eplb_config=SimpleNamespace(
            use_async=asynchronous, step_interval=3000, window_size=1000, communicator="torch_gloo"
        ),
    )
    state = EplbState(config, torch.device("cpu"))
    state.is_async = asynchronous
    for name in names or ("moe",):
        state.model_states[name] = SimpleNamespace(
            communicator=Loopback(),
            model_name=name,
            model=SimpleNamespace(num_moe_layers=2, expert_weights=[[], []]),
            expert_buffer=[],
            rebalanced=False,
            pending_result=None,
        )
    state.next_step = lambda _profile: state.rearrange()
    state.moves = lambda: _move_all(state)
    return state


def without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what needs no group in the place of ``step`` and ``rearrange``, with their signatures."""
    for name, substitute in (("step", _step), ("rearrange", _rearrange)):
        parameters = list(inspect.signature(getattr(EplbState, name)).parameters)
        # Some came with a later vLLM.
        assert parameters == list(inspect.signature(substitute).parameters)[: len(parameters)]
        monkeypatch.setattr(EplbState, name, substitute)
    monkeypatch.setattr(eplb_state, "move_from_buffer", lambda **_: None)
    monkeypatch.setattr(eplb_state, "_commit_eplb_maps_for_layer", lambda *_, **__: None)


def _step(self: Any, is_dummy: bool = False, is_profile: bool = False, log_stats: bool = False) -> None:
    del is_dummy, log_stats
    self.next_step(is_profile)


def _rearrange(
    self: Any, is_profile: bool = False, rank_mapping: Any = None, use_last_expert_load: bool = False
) -> None:
    """Do what the state's ``moves`` does; nothing moves in a profile run."""
    del rank_mapping, use_last_expert_load
    if not is_profile:
        self.moves()


def _move_all(state: Any) -> None:
    """Do what vLLM's ``rearrange`` does with the maps it computed: move each layer of each model."""
    for model in state.model_states.values():
        if state.is_async:
            model.rebalanced = True
            continue
        load = torch.tensor([[9, 1, 1, 1]] * 2)
        state.policy.rebalance_experts(load, 4, 1, 1, 2, torch.from_numpy(OLD))
        for layer in range(2):
            move(model, layer)
