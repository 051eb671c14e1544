"""The table of a consumer's items: bounded, and free of what is missing or bad no longer. ``Items`` holds its lock over each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.zmq_ec.consumer.item_state import PENDING, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.zmq_ec.consumer.item_state import FetchOrder, ItemRecord
    from penstock.instrumentation.vllm.zmq_ec.memory import Slots

KNOWN_MAX: Final = 8_192
"""Bound on the remembered items without a slot: clients name them."""


class ItemRecords:
    """Item records by name. Not thread-safe."""

    def __init__(self, slots: Slots, *, bad_for: float, clock: Callable[[], float]) -> None:
        """Start with none; *bad_for* is in seconds, *clock* monotonic."""
        self._slots = slots
        self._bad_for = bad_for
        self._clock = clock
        self._records: dict[str, ItemRecord] = {}

    def get(self, item: str) -> ItemRecord | None:
        """Return the record of *item*; it may have expired."""
        return self._records.get(item)

    def current(self, item: str) -> ItemRecord | None:
        """Return the record of *item*; forget it if it has expired."""
        record = self._records.get(item)
        if record is not None and self._has_expired(record, self._clock()):
            del self._records[item]
            return None
        return record

    def pending(self, wanted: FetchOrder) -> ItemRecord | None:
        """Return the record of an order; None if the scheduler has given it up."""
        record = self._records.get(wanted.item)
        if record is None or record.wanted.serial != wanted.serial or record.stage not in PENDING:
            return None
        return record

    def has_room(self) -> bool:
        """Whether another may be added; if there is no room, forget those that have expired."""
        if len(self._records) - len(self._slots) < KNOWN_MAX:
            return True
        now = self._clock()
        for item, record in list(self._records.items()):
            if self._has_expired(record, now):
                del self._records[item]
        return len(self._records) - len(self._slots) < KNOWN_MAX

    def add(self, record: ItemRecord) -> ItemRecord:
        """Add *record*, in place of an older one of that item."""
        self._records[record.wanted.item] = record
        return record

    def forget(self, items: Iterable[str]) -> None:
        """Remove *items*."""
        for item in items:
            self._records.pop(item, None)

    def retain(self, record: ItemRecord) -> None:
        """Keep the slot of a record until the end of the step."""
        if record.slot is not None and not record.slot.retained:
            self._slots.retain(record.slot)

    def drop(self, record: ItemRecord) -> None:
        """Make it bad. The fetcher frees a slot that is being filled when it finds the order given up."""
        if record.slot is not None:
            self._slots.doom(record.slot)
            record.slot = None
        record.stage, record.until = Stage.BAD, self._clock() + self._bad_for
        record.began_ns = 0
        record.waiters.clear()

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, transfers, the oldest one's start)."""
        found: dict[Peer, tuple[int, int]] = {}
        for record in self._records.values():
            if record.stage is Stage.MOVING and record.peer is not None:
                count, oldest = found.get(record.peer, (0, record.began_ns))
                found[record.peer] = (count + 1, min(oldest, record.began_ns))
        return [(peer, count, oldest) for peer, (count, oldest) in found.items()]

    def _has_expired(self, record: ItemRecord, now: float) -> bool:
        return record.stage in (Stage.MISSING, Stage.BAD) and record.until <= now
