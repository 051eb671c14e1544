"""Sealed batches that are not acknowledged yet. Pure: no clock, no wire.

A batch gets its sequence number when it is first sent. One is in flight at a time and does not change until it is
acknowledged, so a batch dropped behind it leaves no gap and uses no number. Beyond the limit the oldest samples are
dropped first, then the oldest events: a sample is one of many, an event may be the only one of its request. Dropped
entries are counted by kind and reported with the next batch, so an agent that is away for a day leaves one tombstone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.instrumentation.core import OTHER, count_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT: Final = 32 << 20
"""Bytes of batches that wait."""

OVERFLOW: Final = "outbox_full"
REJECTED: Final = "rejected"
"""Reasons in a tombstone."""

KEYS_MAX: Final = 256
"""Different keys of a tombstone's counts; the rest is counted as other."""

Counts: TypeAlias = "Mapping[tuple[str, str], int]"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A batch without its number.

    Attributes:
        content: its events, serialized as a ``Batch``.
        samples: its samples and their strings, likewise.
        held: how many events of which kind are in the content.
        sampled: how many samples of which kind are in the samples.
        lost: entries dropped before this batch, by (reason, kind): ``Batch.tombstone``.
        drops: ``Batch.drops``, by (reason, kind).
        guard_errors: ``Batch.guard_errors``, by (hook, error class).

    """

    content: bytes = b""
    held: Mapping[str, int] = field(default_factory=dict)
    samples: bytes = b""
    sampled: Mapping[str, int] = field(default_factory=dict)
    lost: Counts = field(default_factory=dict)
    drops: Counts = field(default_factory=dict)
    guard_errors: Counts = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.content or self.samples or self.lost or self.drops or self.guard_errors)

    @property
    def body(self) -> bytes:
        """All its entries: concatenated serialized messages are one message."""
        return self.content + self.samples

    @property
    def size(self) -> int:
        """Bytes of its entries."""
        return len(self.content) + len(self.samples)

    @property
    def entries(self) -> int:
        """How many entries it accounts for, sent or lost."""
        return (
            sum(self.held.values())
            + sum(self.sampled.values())
            + count_entries(self.lost)
            + count_entries(self.drops)
        )

    def tombstone(self, reason: str) -> Sealed:
        """Return this batch without its entries, counted as lost for *reason*; drops and guard errors stay."""
        lost = {(reason, kind): count for kind, count in (*self.held.items(), *self.sampled.items())}
        return Sealed(lost=_sum(self.lost, lost), drops=self.drops, guard_errors=self.guard_errors)

    def joined(self, other: Sealed) -> Sealed:
        """Return one batch for two, of which at most one has events and at most one has samples."""
        return Sealed(
            content=self.content or other.content,
            held=self.held or other.held,
            samples=self.samples or other.samples,
            sampled=self.sampled or other.sampled,
            lost=_sum(self.lost, other.lost),
            drops=_sum(self.drops, other.drops),
            guard_errors=_sum(self.guard_errors, other.guard_errors),
        )


NOTHING: Final = Sealed()


class Watermark(Enum):
    """Whether a watermark of the agent belongs to this epoch."""

    GOOD = auto()
    # Below an earlier one (the agent lost its state), or above all that was sent: a new epoch is needed.
    FOREIGN = auto()


class Outbox:
    """Batches in the order of their sealing.

    Attributes:
        size: bytes of entries held, at most the limit, and one batch in flight on top.
        entries: how many entries its batches account for, sent or lost.

    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        # The batch to send next, once :meth:`head` has returned it, and its number: 0 while it has none.
        self._head: Sealed | None = None
        self._seq = 0
        self._last = 0
        # The two halves of what waits behind it, each with the number of the append that it came with.
        self._appended = 0
        self._events: deque[tuple[int, Sealed]] = deque()
        self._samples: deque[tuple[int, Sealed]] = deque()
        self._given_up = NOTHING
        self.size = 0
        self.entries = 0

    def __len__(self) -> int:
        waiting = max(len(self._events), len(self._samples))
        return waiting + (self._head is not None) + bool(self._given_up)

    @property
    def acknowledged(self) -> int:
        """The highest sequence number that the agent has committed."""
        return self._last - bool(self._seq)

    def append(self, batch: Sealed) -> None:
        """Add a batch at the end; the oldest entries make room for it."""
        self._appended += 1
        events = Sealed(
            batch.content, batch.held, lost=batch.lost, drops=batch.drops, guard_errors=batch.guard_errors
        )
        if events:
            self._events.append((self._appended, events))
        if batch.samples:
            self._samples.append((self._appended, Sealed(samples=batch.samples, sampled=batch.sampled)))
        self.size += batch.size
        self.entries += batch.entries
        while self.size > self._limit and (self._samples or self._events):
            self._give_up((self._samples or self._events).popleft()[1])

    def head(self) -> tuple[int, Sealed] | None:
        """Return the batch to send next and its number, the same until it is acknowledged; None if there is none."""
        if self._head is None:
            self._head = self._next()
        if self._head is None:
            return None
        if not self._seq:
            self._last += 1
            self._seq = self._last
        return self._seq, self._head

    def in_flight(self) -> tuple[int, Sealed] | None:
        """Return the number and the batch that is in flight; None if none is."""
        return (self._seq, self._head) if self._seq and self._head is not None else None

    def acknowledge(self, watermark: int) -> Watermark:
        """Apply the agent's watermark, from a greeting or an acknowledgement; release the batch that it covers."""
        if watermark > self._last or watermark < self.acknowledged:
            return Watermark.FOREIGN
        if self._head is not None and 0 < self._seq <= watermark:
            self.size -= self._head.size
            self.entries -= self._head.entries
            self._head, self._seq = None, 0
        return Watermark.GOOD

    def reject(self) -> None:
        """Turn the batch in flight, which the agent rejects, into a tombstone of the same number."""
        if self._head is not None and self._seq:
            self.size -= self._head.size
            self._head = self._head.tombstone(REJECTED)

    def restart(self) -> None:
        """Begin a new epoch: no batch has a number."""
        self._last = self._seq = 0

    def _next(self) -> Sealed | None:
        """Remove and join the two halves of the oldest append, or the one that is left, and the counts of dropped entries."""
        turn = min((queue[0][0] for queue in (self._events, self._samples) if queue), default=0)
        batch, self._given_up = self._given_up, NOTHING
        for queue in (self._events, self._samples):
            if queue and queue[0][0] == turn:
                batch = batch.joined(queue.popleft()[1])
        return batch or None

    def _give_up(self, batch: Sealed) -> None:
        self.size -= batch.size
        self._given_up = self._given_up.joined(batch.tombstone(OVERFLOW))


def _sum(left: Counts, right: Counts) -> Counts:
    if not right:
        return left
    total = dict(left)
    for key, count in right.items():
        place = key if key in total or len(total) < KEYS_MAX else (OTHER, OTHER)
        total[place] = total.get(place, 0) + count
    return total
