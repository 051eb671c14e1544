"""Wrappers of the functions that plan and move a layer's experts. vLLM's own call is outside the guard."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

_GUARD = guard("eplb")


def wrap_move_to_workspace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report that a received layer is in use."""
    from penstock.instrumentation.vllm.eplb.observer import rebalance_of

    @functools.wraps(original)
    def _move_to_workspace(model_state: Any, *args: Any, **kwargs: Any) -> Any:
        layer, rebalance = -1, None
        with _GUARD:
            # The call removes it.
            layer = model_state.pending_result.layer_idx
            rebalance = rebalance_of(model_state.communicator)
        result = original(model_state, *args, **kwargs)
        if rebalance is not None:
            with _GUARD:
                rebalance.on_layer_placed(layer)
        return result

    return _move_to_workspace


def wrap_layer_result(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report that a layer is received."""
    from penstock.instrumentation.vllm.eplb.observer import on_result_ready

    @functools.wraps(original, updated=())
    def make_result(*args: Any, **kwargs: Any) -> Any:
        # vLLM constructs the result when the thread's stream has finished: the layer is received.
        with _GUARD:
            on_result_ready()
        return original(*args, **kwargs)

    return make_result


def wrap_move_to_buffer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report the start of a layer's move, its partners and its failure."""
    from penstock.instrumentation.vllm.eplb.layer_transfer import NO_PARTNERS
    from penstock.instrumentation.vllm.eplb.observer import on_move_finished, on_move_started, rebalance_of

    signature = inspect.signature(original)

    @functools.wraps(original)
    def move_to_buffer(*args: Any, **kwargs: Any) -> Any:
        rebalance, call, partners = None, {}, NO_PARTNERS
        if runtime.active:
            with _GUARD:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                call = bound.arguments
                rebalance = rebalance_of(call["communicator"])
                if rebalance is not None:
                    partners = on_move_started(rebalance, call)
        if rebalance is None:
            return original(*args, **kwargs)
        try:
            metadata = original(*args, **kwargs)
        except BaseException as error:
            with _GUARD:
                if runtime.active:
                    rebalance.on_layer_failed(error)
            raise
        with _GUARD:
            if runtime.active:
                on_move_finished(rebalance, call, metadata, partners)
        return metadata

    return move_to_buffer


def wrap_rebalance_experts(original: Callable[..., Any]) -> Any:
    """Report what the policy decided; *original* is a bound class method, and so is the result."""
    from penstock.instrumentation.vllm.eplb.observer import on_policy_run

    unbound = original.__func__  # type: ignore[attr-defined]
    signature = inspect.signature(unbound)

    @functools.wraps(unbound)
    def rebalance_experts(cls: type, *args: Any, **kwargs: Any) -> Any:
        result = unbound(cls, *args, **kwargs)
        if runtime.active:
            with _GUARD:
                call = signature.bind(cls, *args, **kwargs).arguments
                on_policy_run(
                    call["weight"], call["num_ranks"], call.get("old_global_expert_indices"), result
                )
        return result

    return classmethod(rebalance_experts)
