"""Tracks the rebalances of one ``EplbState`` from the hooks on its threads."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import move_stream
from penstock.instrumentation.vllm.eplb.layer_transfer import (
    balancedness,
    expert_bytes_of,
    layer_moves,
    partners_of,
)
from penstock.instrumentation.vllm.eplb.rebalance import DRAINED, NOT_BEGUN, STOPPED, Rebalance, RebalanceSite
from penstock.instrumentation.vllm.naming import engine_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.eplb.layer_transfer import Partners
    from penstock.proto.v1.snapshot_pb2 import Snapshot

# Attribute of a communicator that holds the rebalance it moves experts for.
_REBALANCE = "_penstock_rebalance"

# Communicators that block the host until experts are received; NCCL's calls return before the device has finished.
_HOST_BLOCKING = frozenset({"NixlEplbCommunicator", "TorchDistGlooStagedEplbCommunicator"})


class _ThreadState(threading.local):
    """Passes state from one hook to the next on the same thread.

    Attributes:
        balance: balancedness before and after, from the policy's last run.
        moving: the rebalance whose transfer continues in a stream.

    """

    balance: tuple[float | None, float | None] | None = None
    moving: Rebalance | None = None


_thread_state = _ThreadState()


class EplbObserver:
    """The rebalances of one ``EplbState``. Runs on the forward pass's thread unless a method says otherwise."""

    def __init__(self, state: Any) -> None:
        """Observe *state*; set this worker's identity if no other hook has."""
        self._config = state.parallel_config
        self._open: dict[int, tuple[Any, Rebalance]] = {}
        self._steps = 0
        self._last_begun = 0
        self._step_began: int | None = None
        runtime.snapshots.add("eplb", self.fill)
        _identify(state.parallel_config)
        runtime.start()

    def on_step_started(self) -> None:
        """Record the start of ``step``."""
        self._step_began = time.monotonic_ns()

    def on_rebalance_started(self, state: Any, *, elastic: bool) -> None:
        """Open a rebalance for each model of *state*."""
        trigger = c.EPLB_TRIGGER_OTHER
        if elastic:
            trigger = c.EPLB_TRIGGER_ELASTIC
        elif self._step_began is not None:
            trigger = c.EPLB_TRIGGER_INTERVAL
        # A rebalance that outlasts the interval ends in the step in which the next starts.
        if self._step_began is not None:
            self._add_pause(self._step_began)
        self._end_all(STOPPED)
        _thread_state.balance = None
        self._last_begun = self._steps
        for model in state.model_states.values():
            communicator = model.communicator
            site = RebalanceSite(self._config.rank, type(communicator).__name__, str(model.model_name))
            layers = int(model.model.num_moe_layers)
            rebalance = Rebalance(site, trigger, bool(state.is_async), self._steps, layers)
            self._open[id(model)] = (model, rebalance)
            setattr(communicator, _REBALANCE, rebalance)

    def on_rearranged(self, state: Any, began: int) -> None:
        """Record the end of ``rearrange``; in asynchronous mode its layers follow."""
        if self._step_began is None:
            self._add_pause(began)
            if not state.is_async:
                self._end_all()

    def on_step_finished(self, state: Any) -> None:
        """Record the end of ``step``; its duration is the pause of the open rebalances."""
        began, self._step_began = self._step_began, None
        self._steps += 1
        if began is None or not self._open:
            return
        self._add_pause(began)
        for key, (model, rebalance) in list(self._open.items()):
            if rebalance.closed or not state.is_async:
                self._end(key)
            elif not model.rebalanced:
                self._end(key, STOPPED)

    def on_failed(self, began: int, error: BaseException) -> None:
        """Close the open rebalances: vLLM's call, which started at *began*, raised *error*. Emitted once."""
        if not self._open:
            return
        self._add_pause(began)
        _fail_current([rebalance for _, rebalance in self._open.values()], error)
        self._end_all(NOT_BEGUN)

    def on_drained(self, began: int) -> None:
        """Close the open rebalances as drained, in a call that started at *began*."""
        self._add_pause(began)
        self._end_all(DRAINED)

    def on_thread_failed(self, error: BaseException) -> None:
        """Close unfinished rebalances: the receiving thread died; vLLM logs that and continues. Runs on that thread."""
        unfinished = [rebalance for model, rebalance in list(self._open.values()) if model.rebalanced]
        _fail_current(unfinished, error)
        for rebalance in unfinished:
            rebalance.close(NOT_BEGUN)

    def abandon(self) -> None:
        """Forget rebalances in progress: their end is not observed while paused."""
        for model, rebalance in self._open.values():
            _detach(model, rebalance)
        self._open.clear()
        self._step_began = None

    def fill(self, snapshot: Snapshot) -> None:
        """Add EPLB's settings and the layers in transfer. Runs on the exporter's thread."""
        config = self._config.eplb_config
        status = snapshot.eplb
        status.enabled = True
        status.asynchronous = bool(config.use_async)
        status.step_interval = int(config.step_interval)
        status.window_size = int(config.window_size)
        status.communicator = str(config.communicator or "")
        opened = [rebalance for _, rebalance in list(self._open.values())]
        for rebalance in opened:
            rebalance.fill(snapshot)
        snapshot.progress.eplb.add(
            rank=self._config.rank,
            steps=self._steps,
            last_begun_step=self._last_begun,
            open_start_time_unix_nano=min((each.start_ns for each in opened), default=0),
        )

    def _add_pause(self, since: int) -> None:
        """Divide this thread's time from *since*: each rebalance gets the time up to its last layer, the last one the rest."""
        rebalances = [rebalance for _, rebalance in self._open.values()]
        if not rebalances:
            return
        done = max(since, min(rebalance.began for rebalance in rebalances))
        moved = sorted((each for each in rebalances if each.moved_ns > done), key=lambda each: each.moved_ns)
        for rebalance in moved:
            rebalance.pause_ns += rebalance.moved_ns - done
            done = rebalance.moved_ns
        last = moved[-1] if moved else next((each for each in rebalances if not each.complete), rebalances[0])
        last.pause_ns += time.monotonic_ns() - done

    def _end_all(self, reason: str = "") -> None:
        for key in list(self._open):
            self._end(key, reason)

    def _end(self, key: int, reason: str = "") -> None:
        model, rebalance = self._open.pop(key)
        _detach(model, rebalance)
        rebalance.close("" if rebalance.complete else reason)


def _fail_current(rebalances: list[Rebalance], error: BaseException) -> None:
    """Attribute *error* to the first unfinished of *rebalances*, in vLLM's order, unless a layer has failed already."""
    if rebalances and not any(rebalance.error is not None for rebalance in rebalances):
        next((each for each in rebalances if not each.complete), rebalances[-1]).on_failed(error)


def _detach(model: Any, rebalance: Rebalance) -> None:
    if rebalance_of(model.communicator) is rebalance:
        setattr(model.communicator, _REBALANCE, None)


def rebalance_of(communicator: Any) -> Rebalance | None:
    """Return the rebalance that *communicator* moves experts for; None outside one, as in a profile run."""
    found: Rebalance | None = getattr(communicator, _REBALANCE, None)
    return found


def on_move_started(rebalance: Rebalance, call: Mapping[str, Any]) -> Partners:
    """Record the start of a layer's transfer, with the arguments of ``move_to_buffer``; return its partners."""
    balance, _thread_state.balance = _thread_state.balance, None
    if balance is not None:
        rebalance.set_balancedness(*balance)
    partners = partners_of(
        call["old_indices"], call["new_indices"], call["num_local_experts"], call["ep_rank"]
    )
    rebalance.on_layer_started(call["layer_idx"], partners)
    return partners


def on_move_finished(
    rebalance: Rebalance, call: Mapping[str, Any], metadata: Any, partners: Partners
) -> None:
    """Record what ``move_to_buffer`` has moved; *metadata* is its result."""
    layer, weights = call["layer_idx"], call["expert_weights"]
    size = expert_bytes_of(weights)
    rebalance.on_layer_moved(
        layer_moves(layer, metadata, call["new_indices"], call["ep_rank"], size, partners.sources)
    )
    if move_stream(call) is not None:
        _thread_state.moving = rebalance
        return
    _thread_state.moving = None
    on_host = all(weight.device.type == "cpu" for weight in weights)
    rebalance.on_layer_received(timed=on_host or rebalance.site.communicator in _HOST_BLOCKING)
    rebalance.on_layer_placed(layer)


def on_result_ready() -> None:
    """Record the end of the transfer in this thread's stream."""
    rebalance, _thread_state.moving = _thread_state.moving, None
    if rebalance is not None and runtime.active:
        rebalance.on_layer_received()


def on_policy_run(load: Any, ranks: int, old: Any, new: Any) -> None:
    """Keep the balancedness of the maps before and after, if the tensors are on the CPU."""
    _thread_state.balance = None
    if load.device.type == "cpu" and new.device.type == "cpu":
        tokens = load.numpy().astype(np.float64)
        before = None
        if old is not None and old.device.type == "cpu":
            # Elastic scaling changes the number of ranks, not the rows of each.
            before = balancedness(tokens, old.numpy(), old.shape[1] // (new.shape[1] // ranks))
        _thread_state.balance = before, balancedness(tokens, new.numpy(), ranks)


def _identify(parallel_config: Any) -> None:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is None:
        if not runtime.identity.process:
            index = str(parallel_config.data_parallel_index)
            runtime.identify(process="worker", key=index, rank=parallel_config.rank)
        return
    engine_identity.identify_worker(config)
