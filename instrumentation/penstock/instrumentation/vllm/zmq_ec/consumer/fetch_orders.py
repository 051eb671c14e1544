"""The fetcher's side of a consumer's items: what it has to get, and what has become of it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import Stage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from penstock.instrumentation.vllm.ec import EcFailure
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import FetchOrder, ItemRecord, ItemRecords
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots
    from penstock.instrumentation.vllm.zmq_ec.wire import Content

_FRESH: Final = 10.0  # seconds that a slot is kept for the requests that waited for it


class FetchOrders:
    """The orders of the scheduler, and their results; one that it has given up is ignored. Thread-safe, except :meth:`add`.

    Attributes:
        room_wanted: the last order that needed room got none. Read below the lock.

    """

    def __init__(
        self,
        records: ItemRecords,
        slots: Slots,
        lock: threading.Lock,
        clock: Callable[[], float],
        *,
        missing_for: float,
        bad_for: float,
        on_failed: Callable[[ItemRecord, EcFailure], None],
    ) -> None:
        """Share *records*, *slots* and their *lock* with ``Items``; times are in seconds, *on_failed* is called below the lock."""
        self.room_wanted = False
        self._records = records
        self._slots = slots
        self._lock = lock
        self._clock = clock
        self._missing_for = missing_for
        self._bad_for = bad_for
        self._on_failed = on_failed
        self._orders: deque[FetchOrder] = deque()

    def add(self, wanted: FetchOrder) -> None:
        """Order an item. The caller holds the lock."""
        self._orders.append(wanted)

    def drain(self) -> list[FetchOrder]:
        """Return the orders since the last call."""
        with self._lock:
            taken = list(self._orders)
            self._orders.clear()
            return taken

    def set_peer(self, wanted: FetchOrder, peer: Peer | None) -> None:
        """Record the only producer that may still have *wanted*, None if several may."""
        with self._lock:
            record = self._records.pending(wanted)
            if record is not None and record.stage is Stage.PROBING:
                record.peer = peer

    def allocate(self, wanted: FetchOrder, content: Content, peer: Peer) -> Slot | None:
        """Return a slot for *wanted*, which *peer* has, or None while there is no room."""
        with self._lock:
            record = self._records.pending(wanted)
            if record is None:
                return None
            record.stage, record.peer = Stage.WAITING, peer
            slot, evicted = self._slots.allocate(wanted.item, content.size, self._clock())
            self._records.forget(each.item for each in evicted)
            self.room_wanted = slot is None
            if slot is not None:
                record.stage, record.content, record.began_ns = Stage.MOVING, content, time.time_ns()
            return slot

    def set_rehearsed(self, wanted: FetchOrder) -> None:
        """Record that a fault drill makes it late."""
        with self._lock:
            record = self._records.pending(wanted)
            if record is not None:
                record.rehearsed = True

    def is_wanted(self, wanted: FetchOrder) -> bool:
        """Whether the scheduler has not given it up."""
        with self._lock:
            return self._records.pending(wanted) is not None

    def on_arrived(self, wanted: FetchOrder, slot: Slot, checksum: int | bytes) -> bool:
        """Make *slot*, whose content is whole and has that checksum, loadable; return False and free it if it was given up."""
        with self._lock:
            record = self._records.pending(wanted)
            if record is None:
                self._slots.free(slot)
                return False
            record.stage, record.slot, record.checksum = Stage.READY, slot, checksum
            record.waiters.clear()
            self._slots.seal(slot, self._clock() + _FRESH)
            return True

    def on_attempt_ended(self, wanted: FetchOrder, slot: Slot | None) -> bool:
        """Free the slot of a failed attempt; return whether another attempt follows."""
        with self._lock:
            if slot is not None:
                self._slots.free(slot)
            record = self._records.pending(wanted)
            if record is None:
                return False
            record.stage, record.began_ns, record.peer = Stage.PROBING, 0, None
            return True

    def on_missing(self, wanted: FetchOrder) -> None:
        """No producer has it; not asked again for ``missing_for``."""
        with self._lock:
            record = self._records.pending(wanted)
            if record is not None:
                record.stage, record.until = Stage.MISSING, self._clock() + self._missing_for
                record.began_ns, record.peer = 0, None
                record.waiters.clear()

    def on_failed(self, failure: EcFailure, wanted: FetchOrder, slot: Slot | None) -> None:
        """Its load failed; not tried again for ``bad_for``."""
        with self._lock:
            if slot is not None:
                self._slots.free(slot)
            record = self._records.pending(wanted)
            if record is None:
                return
            record.stage, record.until = Stage.BAD, self._clock() + self._bad_for
            self._on_failed(record, failure)
