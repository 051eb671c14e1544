"""A consumer's worker: pushes into its memory, from their reservation on, and the loads that hand them over.

A reservation is made when the producer begins to encode, so the time until the item is there is no measure of the fabric: a received item
is reported without a duration. The producer reports how long it wrote.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import EcFailure, EcObserver, EcTransfer
from penstock.instrumentation.vllm.ec.mooncake.names import (
    BEGAN,
    PEER,
    REQUESTS,
    peer_from_wire,
    peer_to_wire,
)
from penstock.instrumentation.vllm.naming import Failure, Peer, cut, failure_modes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping

    from penstock.instrumentation.orders import Drill
    from penstock.proto.v1.common_pb2 import Channel, Component
    from penstock.proto.v1.snapshot_pb2 import Snapshot

CAPACITY: Final = 4096
"""Pushes that are remembered; beyond it the oldest is forgotten."""

_GONE: Final = "the receive pool does not hold the pushed item any more"
_RECLAIMED: Final = "the receive pool has reclaimed the item that was to be used again"


class ReportingWorker(Protocol):
    """What the receiver uses of the worker's ``EcWorker``."""

    def drill(self, mode: int, peer: str) -> Drill | None:
        """Return the fault drill that hits this attempt, if one does."""
        ...

    def note_failure(self, item: str, failure: Failure) -> None:
        """Report to the scheduler that an item was not loaded."""
        ...


@dataclass(slots=True)
class Push:
    """A push into this worker's memory; times are the wall clock in nanoseconds, *end_ns* is 0 while it is not there."""

    item: str
    peer: Peer
    nbytes: int
    start_ns: int
    end_ns: int = 0
    request_id: str = ""


class MooncakeReceiver:
    """The pushes and loads of one consumer's worker. The control server's thread and the worker's call it."""

    def __init__(self, observer: EcObserver, worker: ReportingWorker) -> None:
        """Report to *observer*, and failed loads through *worker* to the scheduler as well."""
        self._observer = observer
        self._worker = worker
        self._lock = threading.Lock()
        self._pushes: OrderedDict[str, Push] = OrderedDict()

    # Pushes

    def on_reserved(self, payload: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Record a reservation; one that the producer will not write to moves nothing."""
        if not answer.get("write"):
            return
        push = Push(str(payload["mm_hash"]), peer_from_wire(payload), int(answer["nbytes"]), time.time_ns())
        with self._lock:
            self._pushes[str(payload["transfer_id"])] = push
            if len(self._pushes) > CAPACITY:
                self._pushes.popitem(last=False)

    def on_refused(self, payload: Mapping[str, Any], error: Exception) -> None:
        """Report a reservation that this worker refused: its pool is full, or the message is wrong."""
        self._observer.failed(
            EcFailure(
                str(payload.get("mm_hash", "")),
                c.FAILURE_MODE_SETUP,
                c.ERROR_TYPE_OTHER,
                cut(str(error)),
                peer=peer_from_wire(payload),
                error_class=type(error).__name__,
            )
        )

    def status(self, transfer_id: str) -> dict[str, Any]:
        """Return what the scheduler is to know of a push that has come."""
        with self._lock:
            push = self._pushes.get(transfer_id)
        return {} if push is None else {PEER: peer_to_wire(push.peer), BEGAN: push.start_ns}

    def on_written(self, transfer_id: str) -> None:
        """Record that a push has come as a whole; it is reported with its load, which knows the request."""
        with self._lock:
            push = self._pushes.get(transfer_id)
            if push is not None and not push.end_ns:
                push.end_ns = time.time_ns()

    def on_released(self, transfer_id: str) -> None:
        """Report a push whose memory is given back without a load; if it had not come, that is a failure."""
        push = self._pop(transfer_id)
        if push is None:
            return
        self._sample(push, ok=bool(push.end_ns))
        if not push.end_ns:
            self._fail(push, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, "the producer gave the push up")

    def on_replaced(self, transfer_id: str) -> None:
        """Forget a reservation that the producer takes anew, before it writes."""
        self._pop(transfer_id)

    def on_overdue(self, transfer_id: str) -> None:
        """Report a push that has not come within its reservation's time; its memory stays reserved."""
        with self._lock:
            push = self._pushes.get(transfer_id)
        if push is not None:
            text = "the push has not ended within its reservation's time; its memory stays reserved"
            self._fail(push, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, text)

    # Loads

    def before_load(self, metadata: Any) -> None:
        """Record which requests the step's loads are for."""
        requests: Mapping[str, str] = getattr(metadata, REQUESTS, {})
        with self._lock:
            for transfer_id, request_id in requests.items():
                push = self._pushes.get(transfer_id)
                if push is not None:
                    push.request_id = request_id

    def rehearse(
        self, metadata: Any, held: frozenset[str], cache: MutableMapping[str, Any], completed: set[str]
    ) -> dict[str, Failure]:
        """Take loaded items that a fault drill hits out of *cache* and *completed*; return them. Not those that were *held* before."""
        hit: dict[str, Failure] = {}
        for spec in metadata.loads:
            item = spec.mm_hash
            if item in held or item not in completed:
                continue
            drill = self._worker.drill(c.FAILURE_MODE_LOAD, self._peer(spec.transfer_id).address)
            if drill is not None:
                hit[item] = Failure(
                    c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER, error_text=f"drill {drill.id}", rehearsal=True
                )
                cache.pop(item, None)
                completed.discard(item)
        return hit

    def after_load(self, metadata: Any, failed: Iterable[str], hit: Mapping[str, Failure]) -> None:
        """Report what the step has loaded, and what it has not: *failed* by itself, *hit* by a drill."""
        missing = set(failed)
        requests: Mapping[str, str] = getattr(metadata, REQUESTS, {})
        for spec in metadata.loads:
            item, request_id = spec.mm_hash, requests.get(spec.transfer_id, "")
            peer = self._peer(spec.transfer_id)
            failure = hit.get(item)
            if failure is None and item in missing:
                text = _RECLAIMED if spec.local else _GONE
                failure = Failure(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_EVICTED, error_text=text)
            push = self._pop(spec.transfer_id)
            if push is not None:
                self._sample(push, ok=bool(push.end_ns))
            if failure is not None:
                self._worker.note_failure(item, failure)
                self._report(item, failure, peer, request_id, push.start_ns if push is not None else 0)

    # Snapshot

    def fill(self, snapshot: Snapshot) -> None:
        """Add the reservations whose item has not come; on the exporter's thread."""
        with self._lock:
            waiting = [(push.peer, push.start_ns) for push in self._pushes.values() if not push.end_ns]
        add_in_flight(snapshot, self._observer, waiting)

    def _peer(self, transfer_id: str) -> Peer:
        with self._lock:
            push = self._pushes.get(transfer_id)
        return Peer() if push is None else push.peer

    def _pop(self, transfer_id: str) -> Push | None:
        with self._lock:
            return self._pushes.pop(transfer_id, None)

    def _sample(self, push: Push, *, ok: bool) -> None:
        end_ns = push.end_ns or time.time_ns()
        self._observer.received(
            EcTransfer(
                push.item, push.peer, end_ns, end_ns, push.nbytes if ok else 0, ok, request_id=push.request_id
            )
        )

    def _fail(self, push: Push, mode: int, error_type: int, text: str) -> None:
        failure = Failure(mode, error_type, error_text=text)
        self._report(push.item, failure, push.peer, push.request_id, push.start_ns)

    def _report(
        self, item: str, failure: failure_modes.Failure, peer: Peer, request_id: str, start_ns: int
    ) -> None:
        self._observer.failed(
            EcFailure(
                item,
                failure.mode,
                failure.error_type,
                failure.error_text,
                peer=peer,
                request_id=request_id,
                error_class=failure.error_class,
                start_ns=start_ns,
            ),
            rehearsal=failure.rehearsal,
        )


def add_in_flight(snapshot: Snapshot, observer: EcObserver, transfers: Iterable[tuple[Peer, int]]) -> None:
    """Add *transfers*, each a peer and the wall clock of its start, to *snapshot*."""
    groups: dict[Peer, list[int]] = {}
    for peer, start_ns in transfers:
        groups.setdefault(peer, []).append(start_ns)
    for peer, starts in groups.items():
        snapshot.in_flight.add(
            channel=cast("Channel", c.CHANNEL_EC),
            connector=observer.connector,
            peer=peer.fields(),
            count=len(starts),
            oldest_start_time_unix_nano=min(starts),
            component=cast("Component", observer.component),
            rank=observer.rank,
        )
