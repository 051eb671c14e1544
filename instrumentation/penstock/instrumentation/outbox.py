"""What has been sealed and not yet acknowledged: pure, without clock or wire.

A batch gets its sequence number when it is first sent. One is in flight at a time,
so at most one entry, the head, is numbered; whatever is given up behind it leaves no
gap and costs no number. When more than the bound waits, the oldest batch becomes a
tombstone: what it held, by kind, and its number if it had one. Neighbouring
tombstones without a number are merged, so an agent that is away for a day leaves
two of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.instrumentation.tally import OTHER

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT: Final = 32 << 20
"""Bytes of batches that wait."""

OVERFLOW: Final = "outbox_full"
REJECTED: Final = "rejected"
"""Reasons in a tombstone."""

KEYS_MAX: Final = 256
"""Different keys of a tombstone's counts; what comes on top is counted as other."""

Counts: TypeAlias = "Mapping[tuple[str, str], int]"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A batch without its number.

    Attributes:
        content: its entries, serialized as a ``Batch``; empty in a tombstone.
        held: how many entries of which kind are in the content.
        lost: of a tombstone: what was given up, by (reason, kind).
        drops: ``Batch.drops``, by (reason, kind).
        guard_errors: ``Batch.guard_errors``, by (hook, error class).

    """

    content: bytes = b""
    held: Mapping[str, int] = field(default_factory=dict)
    lost: Counts = field(default_factory=dict)
    drops: Counts = field(default_factory=dict)
    guard_errors: Counts = field(default_factory=dict)

    def tombstone(self, reason: str) -> Sealed:
        """Return what is left when the content is given up; drops and guard errors are still reported."""
        lost = {(reason, kind): count for kind, count in self.held.items()}
        return Sealed(lost=_sum(self.lost, lost), drops=self.drops, guard_errors=self.guard_errors)

    def merged(self, other: Sealed) -> Sealed:
        """Return one tombstone for two."""
        return Sealed(
            lost=_sum(self.lost, other.lost),
            drops=_sum(self.drops, other.drops),
            guard_errors=_sum(self.guard_errors, other.guard_errors),
        )


@dataclass(slots=True)
class _Entry:
    batch: Sealed
    seq: int = 0


class Watermark(Enum):
    """What a watermark of the agent means for us."""

    GOOD = auto()
    # Behind what it had acknowledged (it lost its state), or ahead of all that was sent: a new epoch is needed.
    FOREIGN = auto()


class Outbox:
    """Batches in the order of their sealing.

    Attributes:
        size: bytes of content held, at most the limit.

    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._entries: deque[_Entry] = deque()
        self._last = 0
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def acknowledged(self) -> int:
        """The highest sequence number that the agent has committed."""
        return self._last - (1 if self._entries and self._entries[0].seq else 0)

    def append(self, batch: Sealed) -> None:
        """Add a batch at the end; the oldest ones make room for it."""
        self._entries.append(_Entry(batch))
        self.size += len(batch.content)
        while self.size > self._limit:
            self._evict()

    def head(self) -> tuple[int, Sealed] | None:
        """Return the batch to send next and its number, the same until it is acknowledged; None if there is none."""
        if not self._entries:
            return None
        entry = self._entries[0]
        if not entry.seq:
            self._last += 1
            entry.seq = self._last
        return entry.seq, entry.batch

    def acknowledge(self, watermark: int) -> Watermark:
        """Take in the agent's watermark: in a greeting, or after a batch."""
        if watermark > self._last or watermark < self.acknowledged:
            return Watermark.FOREIGN
        if self._entries and 0 < self._entries[0].seq <= watermark:
            self.size -= len(self._entries.popleft().batch.content)
        return Watermark.GOOD

    def reject(self) -> None:
        """Give up the batch in flight, which the agent will never take: it becomes a tombstone of the same number."""
        if self._entries and self._entries[0].seq:
            self._bury(0, REJECTED)

    def restart(self) -> None:
        """Begin a new epoch: what is held has no number yet."""
        self._last = 0
        if self._entries:
            self._entries[0].seq = 0

    def _evict(self) -> None:
        index = next(index for index, entry in enumerate(self._entries) if entry.batch.content)
        self._bury(index, OVERFLOW)
        if index and not self._entries[index - 1].seq:
            merged = self._entries[index - 1].batch.merged(self._entries[index].batch)
            self._entries[index - 1].batch = merged
            del self._entries[index]

    def _bury(self, index: int, reason: str) -> None:
        entry = self._entries[index]
        self.size -= len(entry.batch.content)
        entry.batch = entry.batch.tombstone(reason)


def _sum(left: Counts, right: Counts) -> Counts:
    total = dict(left)
    for key, count in right.items():
        place = key if key in total or len(total) < KEYS_MAX else (OTHER, OTHER)
        total[place] = total.get(place, 0) + count
    return total
