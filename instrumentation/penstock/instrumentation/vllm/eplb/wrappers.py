"""Wrappers of ``EplbState`` (its models, its steps, its rebalances, its thread) and of the functions that plan and move a layer's experts.

vLLM's own call is outside the guard.
"""

from __future__ import annotations

import functools
import inspect
import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.instrumentation.vllm.eplb.observer import EplbObserver

_GUARD = guard("eplb")

# Attribute of an EplbState that holds its observer.
_OBSERVER = "_penstock"


def _observer(state: Any) -> EplbObserver:
    found: EplbObserver | None = vars(state).get(_OBSERVER)
    if found is None:
        from penstock.instrumentation.vllm.eplb.observer import EplbObserver

        found = EplbObserver(state)
        setattr(state, _OBSERVER, found)
    return found


def wrap_add_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have a state observed as soon as it has a model."""

    @functools.wraps(original)
    def add_model(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(state, *args, **kwargs)
        if runtime.active:
            with _GUARD:
                _observer(state)
        return result

    return add_model


def _abandon(state: Any) -> None:
    """Forget rebalances in progress: the hooks were paused in the middle of them."""
    found: EplbObserver | None = vars(state).get(_OBSERVER)
    if found is not None:
        found.abandon()


def wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report what vLLM places during a step, and the failure of one."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def step(state: Any, *args: Any, **kwargs: Any) -> Any:
        observer: EplbObserver | None = None
        with _GUARD:
            if not runtime.active:
                _abandon(state)
            elif not signature.bind(state, *args, **kwargs).arguments.get("is_profile", False):
                observer = _observer(state)
                observer.on_step_started()
        if observer is None:
            return original(state, *args, **kwargs)
        began = time.monotonic_ns()
        try:
            return original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer.on_failed(began, error)
            raise
        finally:
            with _GUARD:
                observer.on_step_finished(state)

    return step


def wrap_rearrange(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report the rebalance that the call begins."""

    def started(state: Any, call: Mapping[str, Any]) -> EplbObserver | None:
        if call.get("is_profile", False):
            return None
        observer = _observer(state)
        elastic = call.get("rank_mapping") is not None or call.get("use_last_expert_load", False)
        observer.on_rebalance_started(state, elastic=bool(elastic))
        return observer

    def finished(observer: EplbObserver, state: Any, began: int) -> None:
        observer.on_rearranged(state, began)

    return _wrap_rebalance(original, started, finished)


def wrap_drain_async(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report the end of what the call waits for."""

    def started(state: Any, _: Mapping[str, Any]) -> EplbObserver:
        return _observer(state)

    def finished(observer: EplbObserver, _: Any, began: int) -> None:
        observer.on_drained(began)

    return _wrap_rebalance(original, started, finished)


def _wrap_rebalance(
    original: Callable[..., Any],
    started: Callable[[Any, Mapping[str, Any]], EplbObserver | None],
    finished: Callable[[EplbObserver, Any, int], None],
) -> Callable[..., Any]:
    """Wrap a method of ``EplbState`` in which a rebalance begins or ends.

    Args:
        original: the method.
        started: takes the state and the call's arguments; returns the observer, or None for a call that is not observed.
        finished: takes the observer, the state and the start of the call, in monotonic nanoseconds. Not called after an error.

    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(state: Any, *args: Any, **kwargs: Any) -> Any:
        observer: EplbObserver | None = None
        with _GUARD:
            if not runtime.active:
                _abandon(state)
            else:
                observer = started(state, signature.bind(state, *args, **kwargs).arguments)
        if observer is None:
            return original(state, *args, **kwargs)
        began = time.monotonic_ns()
        try:
            result = original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer.on_failed(began, error)
            raise
        with _GUARD:
            finished(observer, state, began)
        return result

    return call


def wrap_transfer_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report the error that ends the thread of asynchronous transfers."""

    @functools.wraps(original)
    def transfer_run_periodically(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer: EplbObserver | None = vars(state).get(_OBSERVER)
                if observer is not None and runtime.active:
                    observer.on_thread_failed(error)
            raise

    return transfer_run_periodically


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
