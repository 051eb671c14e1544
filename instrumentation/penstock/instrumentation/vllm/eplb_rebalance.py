"""One rebalance of experts on one rank, from its trigger to its last layer, and what is told of it.

In vLLM's synchronous mode all of it runs inside ``EplbState.rearrange``; in the asynchronous mode a thread receives the layers
one by one and the forward pass's thread takes each over in a later ``EplbState.step``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.failures import cut, error_type_of
from penstock.instrumentation.vllm.peers import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.eplb_moves import LayerMoves
    from penstock.proto.v1.snapshot_pb2 import Snapshot

LAYERS_MAX: Final = 256
"""Layers of one rebalance that are told."""

STOPPED: Final = "stopped before its last layer: a rank left the rebalance"
DRAINED: Final = "drained: its layers were received and thrown away, another rebalance follows"


@dataclass(frozen=True, slots=True)
class Who:
    """Where a rebalance happens: the worker's rank in its engine, the communicator's class, the model's name."""

    rank: int
    communicator: str
    model: str


@dataclass(slots=True)
class _Transfer:
    """A layer that is being received: wall clock and monotonic clock of its start, and from which ranks."""

    layer: int
    sources: tuple[int, ...]
    start_ns: int
    began: int
    moves: LayerMoves | None = None


@dataclass(slots=True)
class Rebalance:
    """What has happened so far. Any thread; the lock is held for a few assignments.

    Attributes:
        trigger: ``EPLB_TRIGGER_*``.
        step: forward passes of this process before it.
        start_ns: wall clock.
        pause_ns: time that the forward pass's thread has spent on it.
        complete: the last layer is in its place.

    """

    who: Who
    trigger: int
    asynchronous: bool
    step: int
    start_ns: int = field(default_factory=time.time_ns)
    pause_ns: int = 0
    before: float | None = None
    after: float | None = None
    error: BaseException | None = None
    complete: bool = False
    _began: int = field(default_factory=time.monotonic_ns)
    _layers: list[dict[str, Any]] = field(default_factory=list)
    _transfer: _Transfer | None = None
    _closed: bool = False
    _lock: Any = field(default_factory=threading.Lock)

    def balance(self, before: float | None, after: float | None) -> None:
        """Note how even the load is over the ranks, before and after."""
        self.before, self.after = before, after

    def held_up(self, since: int) -> None:
        """Note that the forward pass's thread has been at it until now; *since*: monotonic clock, ns."""
        self.pause_ns += time.monotonic_ns() - max(since, self._began)

    def layer_begins(self, layer: int, sources: Iterable[int]) -> None:
        """Note that a layer's experts are about to be received from *sources*."""
        self._transfer = _Transfer(layer, tuple(sorted(sources)), time.time_ns(), time.monotonic_ns())

    def layer_moved(self, moves: LayerMoves, *, ready: bool) -> None:
        """Note what a layer's transfer moved; *ready*: it has ended, too (on a stream of its own it may not have)."""
        transfer = self._transfer
        if transfer is not None:
            transfer.moves = moves
            if ready:
                self.layer_ready()

    def layer_ready(self) -> None:
        """Note that the layer is received, and tell it like any other transfer."""
        transfer, self._transfer = self._transfer, None
        if transfer is None or transfer.moves is None:
            return
        took = time.monotonic_ns() - transfer.began
        with self._lock:
            if len(self._layers) < LAYERS_MAX:
                self._layers.append(transfer.moves.fields(transfer.start_ns, took))
        moves, end_ns = transfer.moves, transfer.start_ns + took
        expert_bytes = moves.bytes // moves.recv_count if moves.recv_count else 0
        for source, count in moves.sources.items():
            runtime.emit_transfer(
                end_ns,
                took,
                count,
                count // expert_bytes if expert_bytes else 0,
                0,
                c.CHANNEL_EPLB,
                c.DIRECTION_RECEIVE,
                c.TRANSFER_RESULT_OK,
                c.COMPONENT_WORKER,
                self.who.rank,
                self.who.communicator,
                f"rank:{source}",
                "",
                "",
            )

    def layer_failed(self, error: BaseException) -> None:
        """Tell that a layer could not be received, or the rebalance could not go on for a reason of its own."""
        transfer, self._transfer = self._transfer, None
        if self.error is not None:
            return
        self.error = error
        mode = c.FAILURE_MODE_TRANSFER if transfer is not None else c.FAILURE_MODE_EXCEPTION
        sources = transfer.sources if transfer is not None else ()
        # A group's error does not say which member it is about; with one there is no doubt.
        peer = f"rank:{sources[0]}" if len(sources) == 1 else UNKNOWN
        text = str(error)
        if len(sources) > 1:
            text = f"receiving from ranks {', '.join(map(str, sources[:16]))}: {text}"
        runtime.emit_event(
            "transfer_failure",
            {
                "channel": c.CHANNEL_EPLB,
                "connector": self.who.communicator,
                "direction": c.DIRECTION_RECEIVE,
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

    def close(self, reason: str = "") -> None:
        """Tell the rebalance; *reason*: why it ended before its last layer, where no error says it. Once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            layers = list(self._layers)
        failed = self.error is not None or bool(reason)
        fields: dict[str, Any] = {
            "trigger": self.trigger,
            "result": c.TRANSFER_RESULT_ERROR if failed else c.TRANSFER_RESULT_OK,
            "asynchronous": self.asynchronous,
            "communicator": self.who.communicator,
            "model": self.who.model,
            "start_time_unix_nano": self.start_ns,
            "duration_nano": time.monotonic_ns() - self._began,
            "pause_nano": self.pause_ns,
            "layers": layers,
            "step": self.step,
            "error_class": type(self.error).__name__ if self.error is not None else "",
            "error_text": cut(str(self.error)) if self.error is not None else reason,
        }
        if self.before is not None:
            fields["balancedness_before"] = self.before
        if self.after is not None:
            fields["balancedness_after"] = self.after
        runtime.emit_event("eplb_rebalance", fields, component=c.COMPONENT_WORKER, rank=self.who.rank)

    def fill(self, snapshot: Snapshot) -> None:
        """Add the layer that is being received now; from any thread."""
        transfer = self._transfer
        if transfer is None:
            return
        for source in transfer.sources:
            row = snapshot.in_flight.add(
                channel=c.CHANNEL_EPLB,
                connector=self.who.communicator,
                count=1,
                oldest_start_time_unix_nano=transfer.start_ns,
                component=c.COMPONENT_WORKER,
                rank=self.who.rank,
            )
            row.peer.address = f"rank:{source}"
