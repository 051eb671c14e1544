"""Hooks vLLM's expert-parallel load balancer: transfers, their duration, and the pause of the forward pass.

Observe only: ranks that disagree about a rebalance hang in a collective, so nothing here changes what vLLM does. Transfers of
a profile run are not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import AnyOf, Patch, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import MOVE_STREAM
from penstock.instrumentation.vllm.eplb.wrappers import (
    wrap_add_model,
    wrap_drain_async,
    wrap_layer_result,
    wrap_move_to_buffer,
    wrap_move_to_workspace,
    wrap_rearrange,
    wrap_rebalance_experts,
    wrap_step,
    wrap_transfer_thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need

_MOVE = (
    "num_local_experts",
    "old_indices",
    "new_indices",
    "expert_weights",
    "ep_rank",
    "communicator",
    "layer_idx",
)

_MODEL = ("communicator", "model", "model_name", "pending_result", "rebalanced")
_METADATA = ("is_unchanged", "is_received_locally", "recv_count", "recv_expert_ids", "recv_dst_rows")
_CONFIG = ("communicator", "step_interval", "use_async", "window_size")


class EplbHook:
    """Wraps ``EplbState`` and the functions that move a layer, where vLLM looks them up."""

    name = "eplb"
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Need]:
        """Return the functions that are wrapped and the attributes that are read."""
        from vllm.config.parallel import EPLBConfig
        from vllm.distributed.eplb import async_worker, eplb_state, rebalance_execute
        from vllm.distributed.eplb.policy import AbstractEplbPolicy

        state = eplb_state.EplbState
        return [
            Requirement(state, "__init__", ("parallel_config",)),
            Requirement(state, "add_model"),
            Requirement(state, "step", ("is_profile",)),
            Requirement(state, "rearrange", ("is_profile", "rank_mapping")),
            Requirement(state, "drain_async"),
            Requirement(eplb_state, "EplbModelState", _MODEL),
            Requirement(eplb_state, "_move_to_workspace", ("model_state",)),
            Requirement(async_worker, "transfer_run_periodically", ("state",)),
            Requirement(async_worker, "AsyncEplbLayerResult", ("layer_idx",)),
            Requirement(rebalance_execute, "move_to_buffer", _MOVE),
            AnyOf(tuple(Requirement(rebalance_execute, "move_to_buffer", (name,)) for name in MOVE_STREAM)),
            Requirement(rebalance_execute, "TransferMetadata", _METADATA),
            Requirement(
                AbstractEplbPolicy, "rebalance_experts", ("weight", "num_ranks", "old_global_expert_indices")
            ),
            *(Requirement(EPLBConfig, name) for name in _CONFIG),
        ]

    def install(self) -> None:
        """Patch vLLM."""
        from vllm.distributed.eplb import async_worker, eplb_state, rebalance_execute
        from vllm.distributed.eplb.policy import EPLB_POLICIES

        state = eplb_state.EplbState
        patch = self._patch.set
        patch(state, "add_model", wrap_add_model(state.add_model))
        patch(state, "step", wrap_step(state.step))
        patch(state, "rearrange", wrap_rearrange(state.rearrange))
        patch(state, "drain_async", wrap_drain_async(state.drain_async))
        patch(eplb_state, "_move_to_workspace", wrap_move_to_workspace(eplb_state._move_to_workspace))
        patch(
            async_worker,
            "transfer_run_periodically",
            wrap_transfer_thread(async_worker.transfer_run_periodically),
        )
        patch(async_worker, "AsyncEplbLayerResult", wrap_layer_result(async_worker.AsyncEplbLayerResult))
        patch(rebalance_execute, "move_to_buffer", wrap_move_to_buffer(rebalance_execute.move_to_buffer))
        for policy in EPLB_POLICIES.values():
            patch(policy, "rebalance_experts", wrap_rebalance_experts(policy.rebalance_experts))

    def uninstall(self) -> None:
        """Restore vLLM's functions; rebalances in progress are not reported."""
        self._patch.undo()
        runtime.snapshots.remove("eplb")
