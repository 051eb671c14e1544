"""The emit path: append a tuple to a bounded queue, compare one number, return.

It takes no lock, reads no clock but the event's and allocates nothing but the tuple.
One number, the wake threshold, carries the three reasons to do more than that: the
exporter sleeps (0: the first entry wakes it), a batch is full (511), the queue is full
(the capacity: the newest entry is dropped and counted). An urgent event wakes the
exporter as well, once for each batch.

An entry is appended before the threshold and *urgent* are read, and the exporter sets
both before it reads the queues a last time; so one of the two always sees the other.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import DropCounter
from penstock.instrumentation.telemetry.records import KIND_PROBE, KIND_TRANSFER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.instrumentation.telemetry.records import EventRecord, ProbeRecord, TransferRecord

QUEUE_CAPACITY: Final = 16_384
"""Entries of each kind that may wait for the exporter. It is woken at 512; the rest holds what is emitted until it gets
the interpreter."""

QUEUE_FULL: Final = "queue_full"
"""The reason of a drop from a full queue."""

ID_MAX: Final = 1024
"""Characters of a request id that are kept. A client chooses a part of it, and a queued entry must stay small."""

ROUTINE_KINDS: Final = frozenset({"request_closed", "deferral_start", "deferral_end", "lease_closed"})
"""Kinds of events that every healthy request emits: they wait for the next snapshot. All other kinds are urgent."""

_EVENT_KIND: Final = 1


class Emitter:
    """Bounded queues between the host's threads and the exporter's.

    Attributes:
        events, transfers, probes: what waits, oldest first; the exporter pops from the left.
        drops: entries given up, by (reason, kind).
        wake_threshold: length of a queue above which an emit calls *wake*, at most once per setting.
        urgent: whether an urgent event waits, and *wake* was called for it.

    """

    __slots__ = ("_capacity", "_wake", "drops", "events", "probes", "transfers", "urgent", "wake_threshold")

    def __init__(self, wake: Callable[[], None], capacity: int = QUEUE_CAPACITY) -> None:
        self._wake = wake
        self._capacity = capacity
        self.drops = DropCounter()
        self.events: deque[EventRecord] = deque()
        self.transfers: deque[TransferRecord] = deque()
        self.probes: deque[ProbeRecord] = deque()
        self.wake_threshold = 0
        self.urgent = False

    def emit_event(
        self,
        kind: str,
        fields: Mapping[str, Any],
        *,
        component: int,
        rank: int = 0,
        request_id: str = "",
        rehearsal: bool = False,
        time_ns: int | None = None,
    ) -> None:
        """Queue one event.

        Args:
            kind: the field of ``Event.body`` (``"transfer_failure"``).
            fields: the fields of that message, nested messages as dicts; the caller must not change it afterwards.
            component: ``COMPONENT_*``.
            rank: of the worker that emits.
            request_id: vLLM's internal id; empty where the event concerns no request.
            rehearsal: True if a fault drill caused it.
            time_ns: wall clock in nanoseconds; None for now.

        """
        if len(request_id) > ID_MAX:
            request_id = request_id[:ID_MAX]
        queue = self.events
        queue.append(
            (
                time.time_ns() if time_ns is None else time_ns,
                kind,
                fields,
                component,
                rank,
                request_id,
                rehearsal,
            )
        )
        quiet = self.urgent or kind in ROUTINE_KINDS
        if not quiet:
            self.urgent = True
        if len(queue) > self.wake_threshold:
            self._on_threshold(queue)
        elif not quiet:
            self._wake()

    def emit_transfer(
        self,
        end_ns: int,
        duration_ns: int,
        bytes: int,  # noqa: A002  (the wire's name)
        descriptors: int,
        post_ns: int,
        end_uncertainty_ns: int,
        channel: int,
        direction: int,
        result: int,
        component: int,
        rank: int,
        connector: str,
        peer: str,
        peer_engine_id: str,
        request_id: str,
    ) -> None:
        """Queue one completed transfer. Positional arguments are cheapest; times in nanoseconds.

        *end_uncertainty_ns*: by how much the end may have been before it was seen.
        """
        if len(request_id) > ID_MAX:
            request_id = request_id[:ID_MAX]
        queue = self.transfers
        queue.append((
            end_ns, duration_ns, bytes, descriptors, post_ns, end_uncertainty_ns, channel, direction, result, component,
            rank, connector, peer, peer_engine_id, request_id,
        ))  # fmt: skip
        if len(queue) > self.wake_threshold:
            self._on_threshold(queue)

    def emit_probe(
        self, end_ns: int, duration_ns: int, result: int, connector: str, peer: str, request_id: str
    ) -> None:
        """Queue one look-up in a remote cache and its result (``PROBE_RESULT_*``); times in nanoseconds."""
        if len(request_id) > ID_MAX:
            request_id = request_id[:ID_MAX]
        queue = self.probes
        queue.append((end_ns, duration_ns, result, connector, peer, request_id))
        if len(queue) > self.wake_threshold:
            self._on_threshold(queue)

    def longest(self) -> int:
        """Return the length of the longest queue."""
        return max(len(self.events), len(self.transfers), len(self.probes))

    def queued(self) -> int:
        """Return how many entries wait."""
        return len(self.events) + len(self.transfers) + len(self.probes)

    def saturate(self) -> None:
        """Wake nothing until a queue is full."""
        self.wake_threshold = self._capacity
        self.urgent = True

    def reset(self) -> None:
        """Drop all entries and counts: for a child after a fork, whose parent sends what is queued."""
        self.events.clear()
        self.transfers.clear()
        self.probes.clear()
        self.drops.reset()
        self.wake_threshold = 0
        self.urgent = False

    def _on_threshold(self, queue: deque[Any]) -> None:
        if len(queue) <= self._capacity:
            self.wake_threshold = self._capacity
            self._wake()
            return
        try:
            lost = queue.pop()
        except IndexError:  # the exporter emptied it meanwhile
            return
        if queue is self.events:
            kind = lost[_EVENT_KIND]
        else:
            kind = KIND_TRANSFER if queue is self.transfers else KIND_PROBE
        self.drops.add(QUEUE_FULL, kind)
