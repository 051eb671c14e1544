"""The states, orders and reports of an item, shared by scheduler, fetcher and workers; the table of a consumer's items.

The table is bounded, and free of what is missing or bad no longer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SlotName
    from penstock.instrumentation.vllm.zmq_ec.wire import Content

KNOWN_MAX: Final = 8_192
"""Bound on the remembered items without a slot: clients name them."""


class Stage(enum.Enum):
    """Where an item is."""

    PROBING = enum.auto()
    WAITING = enum.auto()
    MOVING = enum.auto()
    READY = enum.auto()
    MISSING = enum.auto()
    BAD = enum.auto()


class Readiness(enum.Enum):
    """Result of :meth:`Items.want`: loadable, pending, not available, or failed while the request waited."""

    READY = enum.auto()
    PENDING = enum.auto()
    ABSENT = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """Scheduler to fetcher: get this item.

    Attributes:
        producers: addresses that the request named.
        admitted: the only addresses that may be asked; None for all.

    """

    serial: int
    item: str
    rows: int
    request_id: str
    producers: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Scheduler to workers: copy this slot."""

    item: str
    slot: SlotName
    rows: int
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Worker to scheduler.

    Attributes:
        done: generations of slots that need no longer be kept for it.
        unreadable: the subset that it could not load.
        mapped: ranks that have mapped the region since their last report.
        unmapped: why a rank cannot.

    """

    done: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    mapped: int = 0
    unmapped: str = ""


@dataclass(slots=True, eq=False)
class ItemRecord:
    """State of one item.

    Attributes:
        checksum: by the producer's word, once the content is here.
        undecided: set while its failure awaits a decision.
        rehearsed: a fault drill makes it late.

    """

    wanted: FetchOrder
    stage: Stage = Stage.PROBING
    until: float = 0.0
    peer: Peer | None = None
    began_ns: int = 0
    slot: Slot | None = None
    content: Content | None = None
    checksum: int | bytes | None = None
    undecided: bool = False
    rehearsed: bool = False
    waiters: set[str] = field(default_factory=set)


PENDING: Final = (Stage.PROBING, Stage.WAITING, Stage.MOVING)


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
