"""Allocates the shared region. Pure; the caller locks.

A slot is one contiguous extent. It is *filling* until it is sealed, then its content never changes until it is freed;
its generation is unique, so an old reference is detected. Slots in use are not evicted: filling ones, those
that a step is loading (pinned), those promised in this step (retained), and those that no step has loaded yet, for a
time (fresh): else two requests that need two items each could evict each other's for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

ALIGNMENT: Final = 4096
"""Of a slot's beginning; its header and content follow."""

HEADER: Final = 64
"""Bytes before a slot's content: the content's alignment, too."""


@dataclass(slots=True, eq=False)
class Slot:
    """An extent of the region: *size* bytes from *start*, with *nbytes* of content."""

    item: str
    start: int
    size: int
    nbytes: int
    generation: int
    sealed: bool = False
    reports_due: int = 0
    pinned_until: float = 0.0
    overtaken: bool = False
    retained: bool = False
    fresh_until: float = 0.0
    doomed: bool = False

    @property
    def content(self) -> int:
        """Where its content begins."""
        return self.start + HEADER


class Slots:
    """The extents of ``[begin, end)``; first fit, least recently used out first."""

    def __init__(self, begin: int, end: int) -> None:
        """Start with one free extent; *begin* is aligned up."""
        begin = _up(begin)
        self._room = max(end - begin, 0) // ALIGNMENT * ALIGNMENT
        self._free: list[tuple[int, int]] = [(begin, self._room)] if self._room else []
        self._slots: OrderedDict[int, Slot] = OrderedDict()
        self._pinned: OrderedDict[int, Slot] = OrderedDict()
        self._retained: list[Slot] = []
        self._generation = 0

    def __len__(self) -> int:
        return len(self._slots)

    def fits(self, nbytes: int) -> bool:
        """Whether an item of that size could ever have a slot."""
        return _up(nbytes + HEADER) <= self._room

    def allocate(self, item: str, nbytes: int, now: float) -> tuple[Slot | None, list[Slot]]:
        """Return a filling slot, or None while there is no room, and the slots that were evicted."""
        size = _up(nbytes + HEADER)
        evicted: list[Slot] = []
        start = self._carve(size)
        if start is None and self._could_make_room(size, now):
            for slot in list(self._slots.values()):
                if not _evictable(slot, now):
                    continue
                self.free(slot)
                evicted.append(slot)
                start = self._carve(size)
                if start is not None:
                    break
        if start is None:
            return None, evicted
        self._generation += 1
        slot = Slot(item, start, size, nbytes, self._generation)
        self._slots[slot.generation] = slot
        return slot, evicted

    def get(self, generation: int) -> Slot | None:
        """Return the slot of that generation, if it is still there."""
        return self._slots.get(generation)

    def seal(self, slot: Slot, fresh_until: float) -> None:
        """Record that the content is whole."""
        slot.sealed = True
        slot.fresh_until = fresh_until
        self.touch(slot)

    def touch(self, slot: Slot) -> None:
        """Make it the most recently used."""
        self._slots.move_to_end(slot.generation)

    def retain(self, slot: Slot) -> None:
        """Keep it until :meth:`end_step`: it was promised in this step."""
        self.touch(slot)
        slot.retained = True
        self._retained.append(slot)

    def pin(self, slot: Slot, reports: int, until: float) -> None:
        """Keep it until so many more workers have reported that they have loaded it. It is no longer fresh."""
        slot.reports_due += reports
        slot.pinned_until = until
        slot.overtaken = False
        slot.fresh_until = 0.0
        self._pinned[slot.generation] = slot
        self._pinned.move_to_end(slot.generation)

    def on_report(self, generation: int) -> None:
        """Count one worker's report."""
        slot = self._pinned.get(generation)
        if slot is not None:
            for earlier in self._pinned.values():
                if earlier is slot:
                    break
                earlier.overtaken = True
            slot.reports_due -= 1
            if slot.reports_due <= 0:
                self._unpin(slot)

    def end_step(self, now: float) -> None:
        """Forget what was retained, and pins whose reports will not come: a step can be lost.

        Steps end in order, so until a later one has been reported a step may as well be slow, and still read.
        """
        for slot in self._retained:
            slot.retained = False
        self._retained.clear()
        for slot in [each for each in self._pinned.values() if each.overtaken and each.pinned_until <= now]:
            self._unpin(slot)

    def doom(self, slot: Slot) -> None:
        """Free it as soon as no step loads it."""
        slot.doomed = True
        if slot.generation not in self._pinned:
            self.free(slot)

    def free(self, slot: Slot) -> None:
        """Give its extent back, at once. Idempotent."""
        if self._slots.pop(slot.generation, None) is None:
            return
        at = bisect_left(self._free, (slot.start, 0))
        start, size = slot.start, slot.size
        if at < len(self._free) and self._free[at][0] == start + size:
            size += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == start:
            start = self._free[at - 1][0]
            size += self._free.pop(at - 1)[1]
        insort(self._free, (start, size))

    def _unpin(self, slot: Slot) -> None:
        del self._pinned[slot.generation]
        slot.reports_due = 0
        if slot.doomed:
            self.free(slot)

    def _could_make_room(self, size: int, now: float) -> bool:
        """Whether evicting everything that may be would make one extent of that size: nothing is evicted in vain."""
        # The usual case first, because the other sorts all slots: an old one is as large.
        if any(each.size >= size and _evictable(each, now) for each in self._slots.values()):
            return True
        gaps = [
            *self._free,
            *((each.start, each.size) for each in self._slots.values() if _evictable(each, now)),
        ]
        reach, run = -1, 0
        for start, length in sorted(gaps):
            run = run + length if start == reach else length
            reach = start + length
            if run >= size:
                return True
        return False

    def _carve(self, size: int) -> int | None:
        for index, (start, length) in enumerate(self._free):
            if length >= size:
                if length == size:
                    del self._free[index]
                else:
                    self._free[index] = (start + size, length - size)
                return start
        return None


def _up(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT


def _evictable(slot: Slot, now: float) -> bool:
    return slot.sealed and not slot.reports_due and not slot.retained and slot.fresh_until <= now
