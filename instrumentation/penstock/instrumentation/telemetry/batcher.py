"""When the queues are emptied, and into what: the exporter's first half."""

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

ROUND: Final = 1.0
"""Seconds that an entry of a calm engine waits for others to share its batch, which goes with the snapshot of each second: a batch costs the
engine a millisecond, an entry a few microseconds (decision 0011)."""

SOON: Final = 0.2
"""Seconds that a batch waits in which something is that somebody may wait for: a failure, an outcome, a change of policy."""

BATCH_ENTRIES: Final = 512
"""Entries of one kind that are sealed without waiting further, and at most so many at a time."""

NEVER: Final = float("inf")


class Batcher:
    """Takes entries from the emitter's queues; the only one who does.

    Attributes:
        flush_at: when the waiting entries are to be sealed if the link is free; ``NEVER`` with none.
        taken: entries that were taken from the queues, and those that a full queue gave up, as far as reported.

    """

    def __init__(self, emitter: Emitter, ring: Callable[[], None]) -> None:
        """Make one that calls *ring* to be asked again at once."""
        self._emitter = emitter
        self._ring = ring
        self.flush_at = NEVER
        self.taken = 0

    def collect(
        self, now: float, *, free: bool, accounts: bool, hurry: bool = False, watched: bool = False
    ) -> list[Sealed]:
        """Return what is to be sent, oldest first, and set the mark at which the emitter rings again.

        Args:
            now: monotonic seconds.
            free: nothing is in flight or waiting, so a batch that is not full may go. An agent that is
                away gets full batches only, and nobody wakes for less.
            hurry: what waits may go before its time.
            accounts: a snapshot goes now: what waits goes with it, and so do drops and guard errors, even if there is no entry.
            watched: this is called again within a round, so nobody needs to ring for an entry that can wait.

        """
        emitter = self._emitter
        longest = emitter.longest()
        if longest:
            self.flush_at = min(self.flush_at, now + (SOON if emitter.urgent else ROUND))
        sealed: list[Sealed] = []
        if (
            longest >= BATCH_ENTRIES
            or (free and (now >= self.flush_at or (hurry and longest)))
            or (accounts and free and (longest or emitter.drops or guard.counts))
        ):
            sealed = self.seal()
        # First the mark, then the look: an entry is appended before the mark is read, so one of the two sees the other.
        emitter.mark = BATCH_ENTRIES - 1 if watched else 0
        if emitter.queued():
            self.flush_at = min(self.flush_at, now + (SOON if emitter.urgent else ROUND))
            emitter.mark = BATCH_ENTRIES - 1
            if emitter.longest() >= BATCH_ENTRIES:
                self._ring()
        return sealed

    def seal(self) -> list[Sealed]:
        """Seal one batch's worth of each kind now, with all accounts.

        Not more at a time: the host's threads get the interpreter back in between.
        """
        from penstock.instrumentation.telemetry.encoder import seal  # noqa: PLC0415  (not before the first emit)

        emitter = self._emitter
        self.flush_at = NEVER
        emitter.urgent = False
        events, transfers, probes = _take(emitter.events), _take(emitter.transfers), _take(emitter.probes)
        if emitter.queued():
            # What a full batch has left behind may have rung for this one.
            emitter.urgent = True
        self.taken += len(events) + len(transfers) + len(probes)
        try:
            batches = seal(events, transfers, probes, emitter.drops)
        except Exception:
            emitter.drops.add("encode_error", OTHER, len(events) + len(transfers) + len(probes))
            raise
        drops, errors = emitter.drops.take(), guard.counts.take()
        self.taken += overflowed(drops)
        if drops or errors:
            first = batches.pop(0) if batches else Sealed()
            batches.insert(0, replace(first, drops=drops, guard_errors=errors))
        return batches


def overflowed(drops: Mapping[tuple[str, str], int]) -> int:
    """Return how many of *drops* a full queue gave up: those were emitted and never taken from it."""
    return sum(count for (reason, _), count in drops.items() if reason == QUEUE_FULL)


def _take(queue: deque[Any]) -> list[Any]:
    taken: list[Any] = []
    try:
        while len(taken) < BATCH_ENTRIES:
            taken.append(queue.popleft())
    except IndexError:  # empty, or an emit gave up the newest meanwhile
        pass
    return taken
