"""The hook on vLLM's expert-parallel load balancer: what moves, for how long, and how long the forward pass is held up.

Observe only: ranks that disagree about a rebalance hang in a collective, so nothing here changes what vLLM does. Moves of a
profile run are not counted.
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
    from collections.abc import Callable, Iterable

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

# On an EplbState: its observer.
_OBSERVER = "_penstock"


class EplbHook:
    """Wraps ``EplbState`` and the functions that move a layer, where vLLM looks them up."""

    name = "eplb"
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Requirement]:
        """Return what is wrapped and what is read."""
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
        patch(state, "add_model", _observed(state.add_model))
        patch(state, "step", _step(state.step))
        patch(state, "rearrange", _rearrange(state.rearrange))
        patch(state, "drain_async", _drain(state.drain_async))
        patch(eplb_state, "_move_to_workspace", _take_over(eplb_state._move_to_workspace))
        patch(async_worker, "transfer_run_periodically", _thread(async_worker.transfer_run_periodically))
        patch(async_worker, "AsyncEplbLayerResult", _result(async_worker.AsyncEplbLayerResult))
        patch(rebalance_execute, "move_to_buffer", _move(rebalance_execute.move_to_buffer))
        for policy in EPLB_POLICIES.values():
            patch(policy, "rebalance_experts", _policy(policy.rebalance_experts))

    def uninstall(self) -> None:
        """Put everything back; what is under way is not told any more."""
        self._patch.undo()
        runtime.snapshots.remove("eplb")


def _observer(state: Any) -> EplbObserver:
    found: EplbObserver | None = vars(state).get(_OBSERVER)
    if found is None:
        from penstock.instrumentation.vllm.eplb.observer import EplbObserver

        found = EplbObserver(state)
        setattr(state, _OBSERVER, found)
    return found


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_model(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(state, *args, **kwargs)
        if runtime.active:
            with _GUARD:
                _observer(state)
        return result

    return add_model


def _forget(state: Any) -> None:
    """Let go of what is under way: hooks have become passive in the middle of it."""
    found: EplbObserver | None = vars(state).get(_OBSERVER)
    if found is not None:
        found.abandon()


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def step(state: Any, *args: Any, **kwargs: Any) -> Any:
        observer: EplbObserver | None = None
        with _GUARD:
            if not runtime.active:
                _forget(state)
            elif not signature.bind(state, *args, **kwargs).arguments.get("is_profile", False):
                observer = _observer(state)
                observer.step_begins()
        if observer is None:
            return original(state, *args, **kwargs)
        began = time.monotonic_ns()
        try:
            return original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer.failed(began, error)
            raise
        finally:
            with _GUARD:
                observer.step_ended(state)

    return step


def _rearrange(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def rearrange(state: Any, *args: Any, **kwargs: Any) -> Any:
        observer: EplbObserver | None = None
        with _GUARD:
            call = signature.bind(state, *args, **kwargs).arguments
            if not runtime.active:
                _forget(state)
            elif not call.get("is_profile", False):
                found = _observer(state)
                elastic = call.get("rank_mapping") is not None or call.get("use_last_expert_load", False)
                found.rebalance_begins(state, elastic=bool(elastic))
                observer = found
        if observer is None:
            return original(state, *args, **kwargs)
        began = time.monotonic_ns()
        try:
            result = original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer.failed(began, error)
            raise
        with _GUARD:
            observer.rearranged(state, began)
        return result

    return rearrange


def _drain(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def drain_async(state: Any, *args: Any, **kwargs: Any) -> Any:
        observer: EplbObserver | None = None
        with _GUARD:
            if not runtime.active:
                _forget(state)
            else:
                observer = _observer(state)
        if observer is None:
            return original(state, *args, **kwargs)
        began = time.monotonic_ns()
        try:
            result = original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer.failed(began, error)
            raise
        with _GUARD:
            observer.drained(began)
        return result

    return drain_async


def _take_over(original: Callable[..., Any]) -> Callable[..., Any]:
    from penstock.instrumentation.vllm.eplb.observer import rebalance_of

    @functools.wraps(original)
    def _move_to_workspace(model_state: Any, *args: Any, **kwargs: Any) -> Any:
        layer, rebalance = -1, None
        with _GUARD:
            # The call takes it away.
            layer = model_state.pending_result.layer_idx
            rebalance = rebalance_of(model_state.communicator)
        result = original(model_state, *args, **kwargs)
        if rebalance is not None:
            with _GUARD:
                rebalance.layer_placed(layer)
        return result

    return _move_to_workspace


def _thread(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def transfer_run_periodically(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(state, *args, **kwargs)
        except BaseException as error:
            with _GUARD:
                observer: EplbObserver | None = vars(state).get(_OBSERVER)
                if observer is not None and runtime.active:
                    observer.thread_failed(error)
            raise

    return transfer_run_periodically


def _result(original: Callable[..., Any]) -> Callable[..., Any]:
    from penstock.instrumentation.vllm.eplb.observer import result_ready

    @functools.wraps(original, updated=())
    def make_result(*args: Any, **kwargs: Any) -> Any:
        # vLLM makes it when the thread's stream is through: the layer has really been received.
        with _GUARD:
            result_ready()
        return original(*args, **kwargs)

    return make_result


def _move(original: Callable[..., Any]) -> Callable[..., Any]:
    from penstock.instrumentation.vllm.eplb.layer_transfer import NOBODY
    from penstock.instrumentation.vllm.eplb.observer import move_begins, move_ended, rebalance_of

    signature = inspect.signature(original)

    @functools.wraps(original)
    def move_to_buffer(*args: Any, **kwargs: Any) -> Any:
        rebalance, call, partners = None, {}, NOBODY
        if runtime.active:
            with _GUARD:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                call = bound.arguments
                rebalance = rebalance_of(call["communicator"])
                if rebalance is not None:
                    partners = move_begins(rebalance, call)
        if rebalance is None:
            return original(*args, **kwargs)
        try:
            metadata = original(*args, **kwargs)
        except BaseException as error:
            with _GUARD:
                if runtime.active:
                    rebalance.layer_failed(error)
            raise
        with _GUARD:
            if runtime.active:
                move_ended(rebalance, call, metadata, partners)
        return metadata

    return move_to_buffer


def _policy(original: Callable[..., Any]) -> Any:
    from penstock.instrumentation.vllm.eplb.observer import policy_ran

    unbound = original.__func__  # type: ignore[attr-defined]
    signature = inspect.signature(unbound)

    @functools.wraps(unbound)
    def rebalance_experts(cls: type, *args: Any, **kwargs: Any) -> Any:
        result = unbound(cls, *args, **kwargs)
        if runtime.active:
            with _GUARD:
                call = signature.bind(cls, *args, **kwargs).arguments
                policy_ran(call["weight"], call["num_ranks"], call.get("old_global_expert_indices"), result)
        return result

    return classmethod(rebalance_experts)
