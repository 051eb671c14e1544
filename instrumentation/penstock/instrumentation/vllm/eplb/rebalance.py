"""One rebalance of experts on one rank, from its trigger to its last layer, and its events.

In vLLM's synchronous mode all of it runs inside ``EplbState.rearrange``; in asynchronous mode a thread receives the layers one
by one, and the forward pass's thread places each in a later ``EplbState.step``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.eplb.layer_transfer import NO_PARTNERS
from penstock.instrumentation.vllm.naming import UNKNOWN, cut, error_type_of

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.eplb.layer_transfer import LayerMoves, Partners
    from penstock.proto.v1.snapshot_pb2 import Snapshot

RANKS_NAMED_MAX: Final = 16
"""Ranks that an error text names, in each direction."""

LAYERS_MAX: Final = 256
"""Layers reported for one rebalance."""

STOPPED: Final = "stopped before its last layer: a rank left the rebalance"
DRAINED: Final = "drained: its layers were received and discarded; another rebalance follows"
NOT_BEGUN: Final = "not finished: another model's rebalance failed first"


@dataclass(frozen=True, slots=True)
class RebalanceSite:
    """Where a rebalance happens: the worker's rank in its engine, the communicator's class, the model's name."""

    rank: int
    communicator: str
    model: str


@dataclass(slots=True)
class _Transfer:
    """A layer in transfer: its partners, and its start by wall clock (*start_ns*) and monotonic clock (*began*)."""

    layer: int
    partners: Partners
    start_ns: int
    began: int
    moves: LayerMoves | None = None


@dataclass(slots=True)
class Rebalance:
    """The state of one rebalance. Thread-safe; the lock is held for a few assignments.

    All times are nanoseconds.

    Attributes:
        trigger: ``EPLB_TRIGGER_*``.
        step: number of forward passes of this process before it.
        layer_count: number of MoE layers of the model.
        start_ns: wall clock.
        began: monotonic clock of its start.
        pause_ns: time of the forward pass's thread spent on it.
        moved_ns: monotonic clock of the last layer that this thread moved or placed.
        complete: the last layer is placed.
        closed: its event is emitted; no more follow.

    """

    site: RebalanceSite
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

    def set_balancedness(self, before: float | None, after: float | None) -> None:
        """Set the balancedness of the load over the ranks, before and after."""
        self.before, self.after = before, after

    def on_layer_started(self, layer: int, partners: Partners) -> None:
        """Record the start of a layer's transfer."""
        self._transfer = _Transfer(layer, partners, time.time_ns(), time.monotonic_ns())

    def on_layer_moved(self, moves: LayerMoves) -> None:
        """Record what a layer's transfer moves; on a stream of its own it may still be running."""
        transfer = self._transfer
        if transfer is not None:
            transfer.moves = moves

    def on_layer_placed(self, layer: int) -> None:
        """Record that the forward pass's thread has placed a layer."""
        self.moved_ns = time.monotonic_ns()
        self.complete = layer == self.layer_count - 1

    def on_layer_received(self, *, timed: bool = True) -> None:
        """Emit the received layer as transfers; *timed*: the transfer ended just now, so its duration is known."""
        transfer, self._transfer = self._transfer, None
        if transfer is None or transfer.moves is None:
            return
        elapsed = time.monotonic_ns() - transfer.began
        duration_ns = elapsed if timed else 0
        with self._lock:
            if len(self._layers) < LAYERS_MAX:
                self._layers.append(transfer.moves.fields(transfer.start_ns, duration_ns))
        for source, experts in transfer.partners.sources.items():
            self._emit_transfer(
                transfer.start_ns + elapsed,
                duration_ns,
                transfer.moves.sources.get(source, 0),
                experts,
                c.DIRECTION_RECEIVE,
                c.TRANSFER_RESULT_OK,
                f"rank:{source}",
            )

    def on_layer_failed(self, error: BaseException) -> None:
        """Emit that a layer's transfer raised *error*, also after an error of the forward pass's thread."""
        transfer, self._transfer = self._transfer, None
        self._emit_failure(error, transfer)

    def on_failed(self, error: BaseException) -> None:
        """Emit that the rebalance raised *error* outside a layer's transfer, if no layer has failed."""
        self._emit_failure(error, None)

    def _emit_failure(self, error: BaseException, transfer: _Transfer | None) -> None:
        with self._lock:
            if transfer is None and (self.error is not None or self.closed):
                return
            self.error = self.error or error
        mode = c.FAILURE_MODE_TRANSFER if transfer is not None else c.FAILURE_MODE_EXCEPTION
        partners = transfer.partners if transfer is not None else NO_PARTNERS
        # A collective's error does not name the failed rank; with one partner it is known.
        peer = f"rank:{partners.ranks[0]}" if len(partners.ranks) == 1 else UNKNOWN
        direction = c.DIRECTION_SEND if partners.targets and not partners.sources else c.DIRECTION_RECEIVE
        text = str(error)
        if len(partners.ranks) > 1:
            text = f"{_describe(partners)}: {text}"
        if transfer is not None:
            now = time.monotonic_ns()
            self._emit_transfer(
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
                "connector": self.site.communicator,
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
            rank=self.site.rank,
        )

    def _emit_transfer(
        self, end_ns: int, duration_ns: int, size: int, experts: int, direction: int, result: int, peer: str
    ) -> None:
        runtime.emit_transfer(
            end_ns,
            duration_ns,
            size,
            experts,
            0,
            0,
            c.CHANNEL_EPLB,
            direction,
            result,
            c.COMPONENT_WORKER,
            self.site.rank,
            self.site.communicator,
            peer,
            "",
            "",
        )

    def close(self, reason: str = "") -> None:
        """Emit the rebalance, once; *reason*: why it ended before its last layer, if without an error."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            layers = list(self._layers)
        failed = self.error is not None or bool(reason)
        fields = self.fields(failed=failed, reason=reason, layers=layers)
        runtime.emit_event("eplb_rebalance", fields, component=c.COMPONENT_WORKER, rank=self.site.rank)

    def fields(self, *, failed: bool, reason: str, layers: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields of the wire's ``EplbRebalance``."""
        fields: dict[str, Any] = {
            "trigger": self.trigger,
            "result": c.TRANSFER_RESULT_ERROR if failed else c.TRANSFER_RESULT_OK,
            "asynchronous": self.asynchronous,
            "communicator": self.site.communicator,
            "model": self.site.model,
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
        # Balancedness of the new map, which a failed rebalance applies in part at most.
        if self.after is not None and not failed:
            fields["balancedness_after"] = self.after
        return fields

    def fill(self, snapshot: Snapshot) -> None:
        """Add the layer in transfer, one row for each rank that it waits for. Any thread."""
        transfer = self._transfer
        if transfer is None:
            return
        for peer in transfer.partners.sources or transfer.partners.targets:
            row = snapshot.in_flight.add(
                channel=c.CHANNEL_EPLB,
                connector=self.site.communicator,
                count=1,
                oldest_start_time_unix_nano=transfer.start_ns,
                component=c.COMPONENT_WORKER,
                rank=self.site.rank,
            )
            row.peer.address = f"rank:{peer}"


def _describe(partners: Partners) -> str:
    """Return the ranks of a layer's transfer as text."""
    return ", ".join(
        f"{doing} ranks {', '.join(map(str, sorted(ranks)[:RANKS_NAMED_MAX]))}"
        for doing, ranks in (("receiving from", partners.sources), ("sending to", partners.targets))
        if ranks
    )
