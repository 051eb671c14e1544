"""How many entries the agent has, and how many are still here: numbers of the Hello and of the snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.instrumentation.core import count_entries
from penstock.instrumentation.telemetry.batcher import count_overflowed

if TYPE_CHECKING:
    from penstock.instrumentation.telemetry.batcher import Batcher
    from penstock.instrumentation.telemetry.emitter import Emitter
    from penstock.instrumentation.telemetry.outbox import Counts, Outbox
    from penstock.proto.v1.snapshot_pb2 import Emitter as EmitterMessage


class EntryAccount:
    """Counts entries by where they are; on the exporter's thread, without state but that of the epochs before this one.

    *in_flight* is whether the head of the outbox is on the present stream.
    """

    def __init__(self, emitter: Emitter, batcher: Batcher, outbox: Outbox) -> None:
        self._emitter = emitter
        self._batcher = batcher
        self._outbox = outbox
        # Entries that were settled in epochs before this one.
        self._forgotten = 0

    def begin_epoch(self) -> None:
        """Leave out of :meth:`settled` what was settled before; nothing is in flight."""
        self._forgotten = self._settled(self._emitter.drops.snapshot(), in_flight=False)

    def settled(self, *, in_flight: bool) -> int:
        """Return how many entries of this epoch the agent has, or has a report of, with those in flight."""
        return max(0, self._settled(self._emitter.drops.snapshot(), in_flight=in_flight) - self._forgotten)

    def pending(self, *, in_flight: bool) -> int:
        """Return how many entries are in no batch that was sent."""
        return self._pending(self._emitter.drops.snapshot(), in_flight=in_flight)

    def fill(self, message: EmitterMessage, *, in_flight: bool) -> None:
        """Set the counts of entries and of batches that are here."""
        message.queued_entries = self._emitter.queued()
        message.unacknowledged_batches = len(self._outbox)
        message.unacknowledged_bytes = self._outbox.size
        # One copy for both numbers: entries are dropped meanwhile.
        unreported = self._emitter.drops.snapshot()
        message.pending_entries = self._pending(unreported, in_flight=in_flight)
        settled = self._settled(unreported, in_flight=in_flight)
        message.produced_entries = message.pending_entries + settled - self._forgotten

    def _pending(self, unreported: Counts, *, in_flight: bool) -> int:
        return self._emitter.queued() + self._waiting(unreported, in_flight=in_flight)

    def _settled(self, unreported: Counts, *, in_flight: bool) -> int:
        drained = self._batcher.drained + count_overflowed(unreported)
        return drained - self._waiting(unreported, in_flight=in_flight)

    def _waiting(self, unreported: Counts, *, in_flight: bool) -> int:
        """Return how many of the entries that were drained or dropped are in no batch that was sent."""
        head = self._outbox.in_flight() if in_flight else None
        sent = head[1].entries if head is not None else 0
        return count_entries(unreported) + self._outbox.entries - sent
