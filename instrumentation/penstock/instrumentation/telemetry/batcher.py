"""Decides when the emitter's queues are drained, and seals what was in them into batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import OTHER, guard
from penstock.instrumentation.telemetry.emitter import QUEUE_FULL
from penstock.instrumentation.telemetry.outbox import Sealed

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Mapping

    from penstock.instrumentation.telemetry.emitter import Emitter

ROUTINE_DELAY: Final = 1.0
"""Seconds that a routine entry waits for others to share its batch, which goes with the snapshot of each second: a batch
costs the engine a millisecond, an entry a few microseconds (decision 0011)."""

URGENT_DELAY: Final = 0.2
"""Seconds that a batch waits with an urgent entry in it: a failure, an outcome, a change of policy."""

BATCH_ENTRIES: Final = 512
"""Entries of one kind that are sealed without waiting, and at most so many in one call."""

NEVER: Final = float("inf")


class Batcher:
    """The only consumer of the emitter's queues. Belongs to the exporter's thread.

    Attributes:
        flush_at: monotonic seconds at which the waiting entries are due if the link is free; ``NEVER`` without any.
        drained: entries that left the queues, including those that a full queue dropped, as far as reported.

    """

    def __init__(self, emitter: Emitter, wake: Callable[[], None]) -> None:
        """Drain *emitter*; *wake* makes the exporter call :meth:`collect` again at once."""
        self._emitter = emitter
        self._wake = wake
        self.flush_at = NEVER
        self.drained = 0

    def collect(
        self, now: float, *, free: bool, snapshot_due: bool, flush: bool = False, polled: bool = False
    ) -> list[Sealed]:
        """Return the batches to send, oldest first, and set the length at which the emitter wakes the exporter.

        Args:
            now: monotonic seconds.
            free: nothing is in flight or waiting, so a batch that is not full may go. Without an agent only
                full batches are sealed, and fewer entries do not wake the exporter.
            snapshot_due: a snapshot goes now; what waits goes with it, and so do drops and guard errors, even
                without an entry.
            flush: what waits may go before its time.
            polled: this is called again within ``ROUTINE_DELAY``, so routine entries need not wake the exporter.

        """
        emitter = self._emitter
        longest = emitter.longest()
        if longest:
            self.flush_at = min(self.flush_at, now + (URGENT_DELAY if emitter.urgent else ROUTINE_DELAY))
        sealed: list[Sealed] = []
        if (
            longest >= BATCH_ENTRIES
            or (free and (now >= self.flush_at or (flush and longest)))
            or (snapshot_due and free and (longest or emitter.drops or guard.counts))
        ):
            sealed = self.seal()
        # The threshold is set before the queues are read, and an entry is appended before the threshold is read: so
        # one of the two threads sees the other.
        emitter.wake_threshold = BATCH_ENTRIES - 1 if polled else 0
        if emitter.queued():
            self.flush_at = min(self.flush_at, now + (URGENT_DELAY if emitter.urgent else ROUTINE_DELAY))
            emitter.wake_threshold = BATCH_ENTRIES - 1
            if emitter.longest() >= BATCH_ENTRIES:
                self._wake()
        return sealed

    def seal(self) -> list[Sealed]:
        """Seal at most ``BATCH_ENTRIES`` entries of each kind, with all accounts.

        Not more in one call, so that the host's threads get the interpreter back in between.
        """
        from penstock.instrumentation.telemetry.encoder import seal  # noqa: PLC0415  (not before the first emit)

        emitter = self._emitter
        self.flush_at = NEVER
        emitter.urgent = False
        events, transfers, probes = _drain(emitter.events), _drain(emitter.transfers), _drain(emitter.probes)
        if emitter.queued():
            # An urgent entry may be among those that a full batch left behind.
            emitter.urgent = True
        self.drained += len(events) + len(transfers) + len(probes)
        try:
            batches = seal(events, transfers, probes, emitter.drops)
        except Exception:
            emitter.drops.add("encode_error", OTHER, len(events) + len(transfers) + len(probes))
            raise
        drops, errors = emitter.drops.drain(), guard.counts.drain()
        self.drained += count_overflowed(drops)
        if drops or errors:
            first = batches.pop(0) if batches else Sealed()
            batches.insert(0, replace(first, drops=drops, guard_errors=errors))
        return batches


def count_overflowed(drops: Mapping[tuple[str, str], int]) -> int:
    """Return how many of *drops* a full queue gave up: those were emitted and never drained."""
    return sum(count for (reason, _), count in drops.items() if reason == QUEUE_FULL)


def _drain(queue: deque[Any]) -> list[Any]:
    drained: list[Any] = []
    try:
        while len(drained) < BATCH_ENTRIES:
            drained.append(queue.popleft())
    except IndexError:  # empty, or an emit gave up the newest meanwhile
        pass
    return drained
