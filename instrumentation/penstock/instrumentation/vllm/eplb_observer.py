"""The rebalances of one ``EplbState``: which are open, and what its threads report about them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from penstock.instrumentation import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import identity
from penstock.instrumentation.vllm.eplb_moves import (
    balancedness,
    bytes_of_expert,
    layer_moves,
    partners_of,
)
from penstock.instrumentation.vllm.eplb_rebalance import DRAINED, STOPPED, Rebalance, Who

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1.snapshot_pb2 import Snapshot

# On a communicator: the rebalance that it moves experts for.
_REBALANCE = "_penstock_rebalance"


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
    """Told by the hooks about one ``EplbState``; on the forward pass's thread where nothing else is said.

    Attributes:
        in_step: whether the forward pass's thread is inside ``EplbState.step`` now.

    """

    def __init__(self, state: Any) -> None:
        """Observe *state*, and say who this worker is if no other hook has."""
        self._config = state.parallel_config
        self._open: dict[int, tuple[Any, Rebalance]] = {}
        self._steps = 0
        self.in_step = False
        runtime.snapshots.add("eplb", self.fill)
        _identify(state.parallel_config)
        runtime.start()

    def rebalance_begins(self, state: Any, *, elastic: bool) -> None:
        """Note that the experts of all models of *state* are about to be rearranged."""
        trigger = c.EPLB_TRIGGER_OTHER
        if elastic:
            trigger = c.EPLB_TRIGGER_ELASTIC
        elif self.in_step:
            trigger = c.EPLB_TRIGGER_INTERVAL
        self._end_all(STOPPED)
        _of_thread.balance = None
        for model in state.model_states.values():
            communicator = model.communicator
            who = Who(self._config.rank, type(communicator).__name__, str(model.model_name))
            rebalance = Rebalance(who, trigger, bool(state.is_async), self._steps)
            self._open[id(model)] = (model, rebalance)
            setattr(communicator, _REBALANCE, rebalance)

    def rearranged(self, state: Any, began: int, error: BaseException | None) -> None:
        """Note that ``rearrange`` is over; in the asynchronous mode the layers follow."""
        if not self.in_step:
            self._pause(began)
        if error is not None:
            for _, rebalance in self._open.values():
                rebalance.layer_failed(error)
        elif state.is_async:
            return
        if not self.in_step:
            self._end_all()

    def step_ended(self, state: Any, began: int) -> None:
        """Note that ``step`` is over: what it took is the pause of every rebalance that was open in it."""
        self._steps += 1
        if not self._open:
            return
        self._pause(began)
        for key, (model, rebalance) in list(self._open.items()):
            if rebalance.error is not None or not state.is_async:
                self._end(key)
            elif not model.rebalanced:
                self._end(key, "" if rebalance.complete else STOPPED)

    def drained(self) -> None:
        """Note that what was under way has been thrown away."""
        self._end_all(DRAINED)

    def thread_failed(self, error: BaseException) -> None:
        """Note that the thread that receives layers has ended; vLLM logs that and goes on without it. On that thread."""
        for _, rebalance in list(self._open.values()):
            rebalance.layer_failed(error)
            rebalance.close()

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

    def _pause(self, began: int) -> None:
        for _, rebalance in self._open.values():
            rebalance.held_up(began)

    def _end_all(self, reason: str = "") -> None:
        for key in list(self._open):
            self._end(key, reason)

    def _end(self, key: int, reason: str = "") -> None:
        model, rebalance = self._open.pop(key)
        if getattr(model.communicator, _REBALANCE, None) is rebalance:
            setattr(model.communicator, _REBALANCE, None)
        rebalance.close(reason)


def rebalance_of(communicator: Any) -> Rebalance | None:
    """Return the rebalance that *communicator* moves experts for, or None: a move that is none, as in a profile run."""
    found: Rebalance | None = getattr(communicator, _REBALANCE, None)
    return found


def move_begins(rebalance: Rebalance, call: Mapping[str, Any]) -> dict[int, int]:
    """Note that a layer is about to be received; *call*: the arguments of ``move_to_buffer``. Returns experts by source rank."""
    balance, _of_thread.balance = _of_thread.balance, None
    if balance is not None:
        rebalance.balance(*balance)
    sources = partners_of(
        call["old_indices"], call["new_indices"], call["num_local_experts"], call["ep_rank"]
    ).sources
    rebalance.layer_begins(call["layer_idx"], sources)
    return sources


def move_ended(rebalance: Rebalance, call: Mapping[str, Any], metadata: Any, sources: dict[int, int]) -> None:
    """Note what ``move_to_buffer`` has moved: *metadata* is what it returned."""
    moves = layer_moves(
        call["layer_idx"],
        metadata,
        call["new_indices"],
        call["ep_rank"],
        bytes_of_expert(call["expert_weights"]),
        sources,
    )
    in_stream = call["stream"] is not None
    _of_thread.moving = rebalance if in_stream else None
    rebalance.layer_moved(moves, ready=not in_stream)


def result_ready() -> None:
    """Note that the move which went on in this thread's stream has ended."""
    rebalance, _of_thread.moving = _of_thread.moving, None
    if rebalance is not None:
        rebalance.layer_ready()


def policy_ran(load: Any, ranks: int, old: Any, new: Any) -> None:
    """Keep how even the load is by the maps before and after; all tensors are on the CPU already."""
    _of_thread.balance = None
    if load.device.type == "cpu" and new.device.type == "cpu":
        tokens = load.numpy().astype(np.float64)
        before = None
        if old is not None and old.device.type == "cpu":
            before = balancedness(tokens, old.numpy(), ranks)
        _of_thread.balance = before, balancedness(tokens, new.numpy(), ranks)


def _identify(parallel_config: Any) -> None:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is None:
        if not runtime.identity.process:
            index = str(parallel_config.data_parallel_index)
            runtime.identify(process="worker", key=index, rank=parallel_config.rank)
        return
    identity.identify_worker(config)
