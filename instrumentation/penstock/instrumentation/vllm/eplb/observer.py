"""The rebalances of one ``EplbState``: which are open, and what its threads report about them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.eplb.layer_transfer import (
    balancedness,
    bytes_of_expert,
    layer_moves,
    partners_of,
)
from penstock.instrumentation.vllm.eplb.rebalance import DRAINED, NOT_BEGUN, STOPPED, Rebalance, RebalanceSite
from penstock.instrumentation.vllm.naming import engine_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.eplb.layer_transfer import Partners
    from penstock.proto.v1.snapshot_pb2 import Snapshot

# On a communicator: the rebalance that it moves experts for.
_REBALANCE = "_penstock_rebalance"

# Those that wait on the host until experts are received; NCCL's calls return before the device is through.
_WAITS = frozenset({"NixlEplbCommunicator", "TorchDistGlooStagedEplbCommunicator"})


class _OfThread(threading.local):
    """What one hook leaves for the next on the same thread.

    Attributes:
        balance: what the policy's last run came to, before and after.
        moving: of the move that goes on in a stream.

    """

    balance: tuple[float | None, float | None] | None = None
    moving: Rebalance | None = None


_of_thread = _OfThread()


class EplbObserver:
    """Told by the hooks about one ``EplbState``; on the forward pass's thread where nothing else is said."""

    def __init__(self, state: Any) -> None:
        """Observe *state*, and say who this worker is if no other hook has."""
        self._config = state.parallel_config
        self._open: dict[int, tuple[Any, Rebalance]] = {}
        self._steps = 0
        self._step_began: int | None = None
        runtime.snapshots.add("eplb", self.fill)
        _identify(state.parallel_config)
        runtime.start()

    def step_begins(self) -> None:
        """Note that ``step`` begins."""
        self._step_began = time.monotonic_ns()

    def rebalance_begins(self, state: Any, *, elastic: bool) -> None:
        """Note that the experts of all models of *state* are about to be rearranged."""
        trigger = c.EPLB_TRIGGER_OTHER
        if elastic:
            trigger = c.EPLB_TRIGGER_ELASTIC
        elif self._step_began is not None:
            trigger = c.EPLB_TRIGGER_INTERVAL
        # One that has taken longer than the interval ends in the step in which the next begins.
        if self._step_began is not None:
            self._pause(self._step_began)
        self._end_all(STOPPED)
        _of_thread.balance = None
        for model in state.model_states.values():
            communicator = model.communicator
            who = RebalanceSite(self._config.rank, type(communicator).__name__, str(model.model_name))
            layers = int(model.model.num_moe_layers)
            rebalance = Rebalance(who, trigger, bool(state.is_async), self._steps, layers)
            self._open[id(model)] = (model, rebalance)
            setattr(communicator, _REBALANCE, rebalance)

    def rearranged(self, state: Any, began: int) -> None:
        """Note that ``rearrange`` is over; in the asynchronous mode the layers follow."""
        if self._step_began is None:
            self._pause(began)
            if not state.is_async:
                self._end_all()

    def step_ended(self, state: Any) -> None:
        """Note that ``step`` is over: what it took is the pause of the rebalances that were open in it."""
        began, self._step_began = self._step_began, None
        self._steps += 1
        if began is None or not self._open:
            return
        self._pause(began)
        for key, (model, rebalance) in list(self._open.items()):
            if rebalance.closed or not state.is_async:
                self._end(key)
            elif not model.rebalanced:
                self._end(key, STOPPED)

    def failed(self, began: int, error: BaseException) -> None:
        """Note that a call of vLLM's, which began at *began*, ended with *error*: so have the rebalances. Told once."""
        if not self._open:
            return
        self._pause(began)
        _blame([rebalance for _, rebalance in self._open.values()], error)
        self._end_all(NOT_BEGUN)

    def drained(self, began: int) -> None:
        """Note that what was under way has been thrown away, in a call that began at *began*."""
        self._pause(began)
        self._end_all(DRAINED)

    def thread_failed(self, error: BaseException) -> None:
        """Note that the thread that receives layers has ended; vLLM logs that and goes on without it. On that thread."""
        undone = [rebalance for model, rebalance in list(self._open.values()) if model.rebalanced]
        _blame(undone, error)
        for rebalance in undone:
            rebalance.close(NOT_BEGUN)

    def abandon(self) -> None:
        """Forget what is under way: while hooks are passive nobody sees its end."""
        for model, rebalance in self._open.values():
            _detach(model, rebalance)
        self._open.clear()
        self._step_began = None

    def fill(self, snapshot: Snapshot) -> None:
        """Add what EPLB is set to, and the layers that are being received; on the exporter's thread."""
        config = self._config.eplb_config
        facts = snapshot.eplb
        facts.enabled = True
        facts.asynchronous = bool(config.use_async)
        facts.step_interval = int(config.step_interval)
        facts.window_size = int(config.window_size)
        facts.communicator = str(config.communicator or "")
        for _, rebalance in list(self._open.values()):
            rebalance.fill(snapshot)

    def _pause(self, since: int) -> None:
        """Divide what this thread has spent since *since*: each rebalance has the time up to its last layer, the last one the rest."""
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


def _blame(rebalances: list[Rebalance], error: BaseException) -> None:
    """Tell *error* on the one of *rebalances*, in vLLM's order, that was under way, unless a layer of one has failed by it."""
    if rebalances and not any(rebalance.error is not None for rebalance in rebalances):
        next((each for each in rebalances if not each.complete), rebalances[-1]).failed(error)


def _detach(model: Any, rebalance: Rebalance) -> None:
    if rebalance_of(model.communicator) is rebalance:
        setattr(model.communicator, _REBALANCE, None)


def rebalance_of(communicator: Any) -> Rebalance | None:
    """Return the rebalance that *communicator* moves experts for, or None: a move that is none, as in a profile run."""
    found: Rebalance | None = getattr(communicator, _REBALANCE, None)
    return found


def move_begins(rebalance: Rebalance, call: Mapping[str, Any]) -> Partners:
    """Note that a layer is about to be moved; *call*: the arguments of ``move_to_buffer``. Returns whom with."""
    balance, _of_thread.balance = _of_thread.balance, None
    if balance is not None:
        rebalance.balance(*balance)
    partners = partners_of(
        call["old_indices"], call["new_indices"], call["num_local_experts"], call["ep_rank"]
    )
    rebalance.layer_begins(call["layer_idx"], partners)
    return partners


def move_ended(rebalance: Rebalance, call: Mapping[str, Any], metadata: Any, partners: Partners) -> None:
    """Note what ``move_to_buffer`` has moved: *metadata* is what it returned."""
    layer, weights = call["layer_idx"], call["expert_weights"]
    size = bytes_of_expert(weights)
    rebalance.layer_moved(
        layer_moves(layer, metadata, call["new_indices"], call["ep_rank"], size, partners.sources)
    )
    if call["stream"] is not None:
        _of_thread.moving = rebalance
        return
    _of_thread.moving = None
    on_host = all(weight.device.type == "cpu" for weight in weights)
    rebalance.layer_ready(timed=on_host or rebalance.who.communicator in _WAITS)
    rebalance.layer_placed(layer)


def result_ready() -> None:
    """Note that the move which went on in this thread's stream has ended."""
    rebalance, _of_thread.moving = _of_thread.moving, None
    if rebalance is not None and runtime.active:
        rebalance.layer_ready()


def policy_ran(load: Any, ranks: int, old: Any, new: Any) -> None:
    """Keep how even the load is by the maps before and after; all tensors are on the CPU already."""
    _of_thread.balance = None
    if load.device.type == "cpu" and new.device.type == "cpu":
        tokens = load.numpy().astype(np.float64)
        before = None
        if old is not None and old.device.type == "cpu":
            # A change of the ranks leaves each its rows, and another number of ranks.
            before = balancedness(tokens, old.numpy(), old.shape[1] // (new.shape[1] // ranks))
        _of_thread.balance = before, balancedness(tokens, new.numpy(), ranks)


def _identify(parallel_config: Any) -> None:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is None:
        if not runtime.identity.process:
            index = str(parallel_config.data_parallel_index)
            runtime.identify(process="worker", key=index, rank=parallel_config.rank)
        return
    engine_identity.identify_worker(config)
