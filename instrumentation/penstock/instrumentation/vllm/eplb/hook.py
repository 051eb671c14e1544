"""Hooks vLLM's expert-parallel load balancer: transfers, their duration, and the pause of the forward pass.

Observe only: ranks that disagree about a rebalance hang in a collective, so nothing here changes what vLLM does. Transfers of
a profile run are not counted.
"""

from __future__ import annotations

import functools
import inspect
import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Patch, Requirement
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.instrumentation.vllm.eplb.observer import EplbObserver

_GUARD = guard("eplb")

_MOVE = (
    "num_local_experts",
    "old_indices",
    "new_indices",
    "expert_weights",
    "stream",
    "ep_rank",
    "communicator",
    "layer_idx",
)

_MODEL = ("communicator", "model", "model_name", "pending_result", "rebalanced")
_METADATA = ("is_unchanged", "is_received_locally", "recv_count", "recv_expert_ids", "recv_dst_rows")
_CONFIG = ("communicator", "step_interval", "use_async", "window_size")

# Attribute of an EplbState that holds its observer.
_OBSERVER = "_penstock"


class EplbHook:
    """Wraps ``EplbState`` and the functions that move a layer, where vLLM looks them up."""

    name = "eplb"
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Requirement]:
        """Return the functions that are wrapped and the attributes that are read."""
        from vllm.config.parallel import EPLBConfig
        from vllm.distributed.eplb import async_worker, eplb_state, rebalance_execute
        from vllm.distributed.eplb.policy import AbstractEplbPolicy

        state = eplb_state.EplbState
        return [
            Requirement(state, "__init__", ("parallel_config",)),
            Requirement(state, "add_model"),
            Requirement(state, "step", ("is_profile",)),
            Requirement(state, "rearrange", ("is_profile", "rank_mapping", "use_last_expert_load")),
            Requirement(state, "drain_async"),
            Requirement(eplb_state, "EplbModelState", _MODEL),
            Requirement(eplb_state, "_move_to_workspace", ("model_state",)),
            Requirement(async_worker, "transfer_run_periodically", ("state",)),
            Requirement(async_worker, "AsyncEplbLayerResult", ("layer_idx",)),
            Requirement(rebalance_execute, "move_to_buffer", _MOVE),
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
        patch(state, "add_model", _wrap_add_model(state.add_model))
        patch(state, "step", _wrap_step(state.step))
        patch(state, "rearrange", _wrap_rearrange(state.rearrange))
        patch(state, "drain_async", _wrap_drain_async(state.drain_async))
        patch(eplb_state, "_move_to_workspace", _wrap_move_to_workspace(eplb_state._move_to_workspace))
        patch(
            async_worker,
            "transfer_run_periodically",
            _wrap_transfer_thread(async_worker.transfer_run_periodically),
        )
        patch(async_worker, "AsyncEplbLayerResult", _wrap_layer_result(async_worker.AsyncEplbLayerResult))
        patch(rebalance_execute, "move_to_buffer", _wrap_move_to_buffer(rebalance_execute.move_to_buffer))
        for policy in EPLB_POLICIES.values():
            patch(policy, "rebalance_experts", _wrap_rebalance_experts(policy.rebalance_experts))

    def uninstall(self) -> None:
        """Restore vLLM's functions; rebalances in progress are not reported."""
        self._patch.undo()
        runtime.snapshots.remove("eplb")


def _observer(state: Any) -> EplbObserver:
    found: EplbObserver | None = vars(state).get(_OBSERVER)
    if found is None:
        from penstock.instrumentation.vllm.eplb.observer import EplbObserver

        found = EplbObserver(state)
        setattr(state, _OBSERVER, found)
    return found


def _wrap_add_model(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_rearrange(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_drain_async(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_move_to_workspace(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_transfer_thread(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_layer_result(original: Callable[..., Any]) -> Callable[..., Any]:
    from penstock.instrumentation.vllm.eplb.observer import on_result_ready

    @functools.wraps(original, updated=())
    def make_result(*args: Any, **kwargs: Any) -> Any:
        # vLLM constructs the result when the thread's stream has finished: the layer is received.
        with _GUARD:
            on_result_ready()
        return original(*args, **kwargs)

    return make_result


def _wrap_move_to_buffer(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_rebalance_experts(original: Callable[..., Any]) -> Any:
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
