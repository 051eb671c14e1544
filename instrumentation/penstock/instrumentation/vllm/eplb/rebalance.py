"""One rebalance of experts on one rank, from its trigger to its last layer, and what is told of it.

In vLLM's synchronous mode all of it runs inside ``EplbState.rearrange``; in the asynchronous mode a thread receives the layers
one by one and the forward pass's thread takes each over in a later ``EplbState.step``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.eplb.layer_transfer import NOBODY
from penstock.instrumentation.vllm.naming import UNKNOWN, cut, error_type_of

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.eplb.layer_transfer import LayerMoves, Partners
    from penstock.proto.v1.snapshot_pb2 import Snapshot

RANKS_TOLD: Final = 16
"""Ranks that the text of a failure names, in each direction."""

LAYERS_MAX: Final = 256
"""Layers of one rebalance that are told."""

STOPPED: Final = "stopped before its last layer: a rank left the rebalance"
DRAINED: Final = "drained: its layers were received and thrown away, another rebalance follows"
NOT_BEGUN: Final = "not finished: another model's rebalance failed first"


@dataclass(frozen=True, slots=True)
class RebalanceSite:
    """Where a rebalance happens: the worker's rank in its engine, the communicator's class, the model's name."""

    rank: int
    communicator: str
    model: str


@dataclass(slots=True)
class _Transfer:
    """A layer that is being moved: wall clock and monotonic clock of its start, and with which ranks."""

    layer: int
    partners: Partners
    start_ns: int
    began: int
    moves: LayerMoves | None = None


@dataclass(slots=True)
class Rebalance:
    """What has happened so far. Any thread; the lock is held for a few assignments.

    Attributes:
        trigger: ``EPLB_TRIGGER_*``.
        step: forward passes of this process before it.
        layer_count: layers of the model.
        start_ns: wall clock.
        began: monotonic clock of its start.
        pause_ns: time that the forward pass's thread has spent on it.
        moved_ns: monotonic clock of the last layer that this thread moved or took over.
        complete: the last layer is in its place.
        closed: told; nothing more is.

    """

    who: RebalanceSite
    trigger: int
    asynchronous: bool
    step: int
    layer_count: int
    start_ns: int = field(default_factory=time.time_ns)
    began: int = field(default_factory=time.monotonic_ns)
    pause_ns: int = 0
    moved_ns: int = 0
    before: float | None = None
    after: float | None = None
    error: BaseException | None = None
    complete: bool = False
    closed: bool = False
    _layers: list[dict[str, Any]] = field(default_factory=list)
    _transfer: _Transfer | None = None
    _lock: Any = field(default_factory=threading.Lock)

    def balance(self, before: float | None, after: float | None) -> None:
        """Note how even the load is over the ranks, before and after."""
        self.before, self.after = before, after

    def layer_begins(self, layer: int, partners: Partners) -> None:
        """Note that a layer's experts are about to be moved."""
        self._transfer = _Transfer(layer, partners, time.time_ns(), time.monotonic_ns())

    def layer_moved(self, moves: LayerMoves) -> None:
        """Note what a layer's transfer moves; on a stream of its own it may not be through."""
        transfer = self._transfer
        if transfer is not None:
            transfer.moves = moves

    def layer_placed(self, layer: int) -> None:
        """Note that the forward pass's thread has put a layer in its place."""
        self.moved_ns = time.monotonic_ns()
        self.complete = layer == self.layer_count - 1

    def layer_ready(self, *, timed: bool = True) -> None:
        """Note that the layer is received, and tell it like any other transfer; *timed*: it really has ended now."""
        transfer, self._transfer = self._transfer, None
        if transfer is None or transfer.moves is None:
            return
        elapsed = time.monotonic_ns() - transfer.began
        took = elapsed if timed else 0
        with self._lock:
            if len(self._layers) < LAYERS_MAX:
                self._layers.append(transfer.moves.fields(transfer.start_ns, took))
        for source, experts in transfer.partners.sources.items():
            self._sample(
                transfer.start_ns + elapsed,
                took,
                transfer.moves.sources.get(source, 0),
                experts,
                c.DIRECTION_RECEIVE,
                c.TRANSFER_RESULT_OK,
                f"rank:{source}",
            )

    def layer_failed(self, error: BaseException) -> None:
        """Tell that moving a layer ended with *error*; also where the forward pass's thread has met one first."""
        transfer, self._transfer = self._transfer, None
        self._failed(error, transfer)

    def failed(self, error: BaseException) -> None:
        """Tell that it ended with *error* outside a layer's transfer, if no layer's has failed."""
        self._failed(error, None)

    def _failed(self, error: BaseException, transfer: _Transfer | None) -> None:
        with self._lock:
            if transfer is None and (self.error is not None or self.closed):
                return
            self.error = self.error or error
        mode = c.FAILURE_MODE_TRANSFER if transfer is not None else c.FAILURE_MODE_EXCEPTION
        partners = transfer.partners if transfer is not None else NOBODY
        # A group's error does not say which member it is about; with one there is no doubt.
        peer = f"rank:{partners.ranks[0]}" if len(partners.ranks) == 1 else UNKNOWN
        direction = c.DIRECTION_SEND if partners.targets and not partners.sources else c.DIRECTION_RECEIVE
        text = str(error)
        if len(partners.ranks) > 1:
            text = f"{_between(partners)}: {text}"
        if transfer is not None:
            now = time.monotonic_ns()
            self._sample(
                transfer.start_ns + now - transfer.began,
                now - transfer.began,
                0,
                0,
                direction,
                c.TRANSFER_RESULT_ERROR,
                peer,
            )
        runtime.emit_event(
            "transfer_failure",
            {
                "channel": c.CHANNEL_EPLB,
                "connector": self.who.communicator,
                "direction": direction,
                "mode": mode,
                "error_type": error_type_of(error, mode, text),
                "peer": {"address": peer},
                "error_class": type(error).__name__,
                "error_text": cut(text),
                "start_time_unix_nano": transfer.start_ns if transfer is not None else self.start_ns,
                "item": str(transfer.layer) if transfer is not None else "",
            },
            component=c.COMPONENT_WORKER,
            rank=self.who.rank,
        )

    def _sample(
        self, end_ns: int, took: int, size: int, experts: int, direction: int, result: int, peer: str
    ) -> None:
        runtime.emit_transfer(
            end_ns,
            took,
            size,
            experts,
            0,
            c.CHANNEL_EPLB,
            direction,
            result,
            c.COMPONENT_WORKER,
            self.who.rank,
            self.who.communicator,
            peer,
            "",
            "",
        )

    def close(self, reason: str = "") -> None:
        """Tell the rebalance; *reason*: why it ended before its last layer, where no error says it. Once."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            layers = list(self._layers)
        failed = self.error is not None or bool(reason)
        fields = self.fields(failed=failed, reason=reason, layers=layers)
        runtime.emit_event("eplb_rebalance", fields, component=c.COMPONENT_WORKER, rank=self.who.rank)

    def fields(self, *, failed: bool, reason: str, layers: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields of the wire's ``EplbRebalance``."""
        fields: dict[str, Any] = {
            "trigger": self.trigger,
            "result": c.TRANSFER_RESULT_ERROR if failed else c.TRANSFER_RESULT_OK,
            "asynchronous": self.asynchronous,
            "communicator": self.who.communicator,
            "model": self.who.model,
            "start_time_unix_nano": self.start_ns,
            "duration_nano": time.monotonic_ns() - self.began,
            "pause_nano": self.pause_ns,
            "layers": layers,
            "step": self.step,
            "error_class": type(self.error).__name__ if self.error is not None else "",
            "error_text": cut(str(self.error)) if self.error is not None else reason,
        }
        if self.before is not None:
            fields["balancedness_before"] = self.before
        # It is the new map's, which a rebalance that fails does not put into effect, or in part only.
        if self.after is not None and not failed:
            fields["balancedness_after"] = self.after
        return fields

    def fill(self, snapshot: Snapshot) -> None:
        """Add the layer that is being moved now, by the ranks it waits for; from any thread."""
        transfer = self._transfer
        if transfer is None:
            return
        for peer in transfer.partners.sources or transfer.partners.targets:
            row = snapshot.in_flight.add(
                channel=c.CHANNEL_EPLB,
                connector=self.who.communicator,
                count=1,
                oldest_start_time_unix_nano=transfer.start_ns,
                component=c.COMPONENT_WORKER,
                rank=self.who.rank,
            )
            row.peer.address = f"rank:{peer}"


def _between(partners: Partners) -> str:
    """Return whom a layer was moved from and to, in words."""
    return ", ".join(
        f"{doing} ranks {', '.join(map(str, sorted(ranks)[:RANKS_TOLD]))}"
        for doing, ranks in (("receiving from", partners.sources), ("sending to", partners.targets))
        if ranks
    )
