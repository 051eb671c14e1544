"""The state of each item of a consumer, shared by the scheduler's thread and the fetcher's thread.

The scheduler wants, claims and gives up; the fetcher drains the orders and reports their results (``fetch_orders.py``). One
lock, never held over IO or a copy. A *serial* identifies one order, so that the fetcher notices when the scheduler has
given it up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import (
    KNOWN_MAX,
    PENDING,
    FetchOrder,
    ItemRecord,
    ItemRecords,
    LoadOrder,
    Readiness,
    Stage,
)
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SlotName

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.ec import EcFailure
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.zmq_ec.memory import Slots

WAITERS_MAX: Final = 1_024

_UNDECIDED_MAX: Final = 1.0  # seconds that a failure awaits a decision
_PIN_MAX: Final = 60.0  # seconds after which a step's report will not come any more


class Items:
    """All items of one consumer. Thread-safe.

    Attributes:
        orders: the fetcher's side of them.
        observed: an observer drains the failures and decides; otherwise the waiting requests do, by ``load_failure``.

    """

    def __init__(
        self,
        slots: Slots,
        *,
        missing_for: float,
        bad_for: float,
        pending_for: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*wake* is called when there is something for the fetcher; times are in seconds, *pending_for* bounds all waits."""
        self.observed = False
        self._slots = slots
        self._bad_for = bad_for
        self._pending_for = pending_for
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._records = ItemRecords(slots, bad_for=bad_for, clock=clock)
        self.orders = FetchOrders(
            self._records,
            slots,
            self._lock,
            clock,
            missing_for=missing_for,
            bad_for=bad_for,
            on_failed=self._on_failed,
        )
        self._failures: deque[EcFailure] = deque(maxlen=KNOWN_MAX)
        self._serial = 0

    def want(self, item: str, rows: int, request_id: str) -> Readiness | None:
        """Return the readiness of *item* for *request_id*; None if nothing is known of it, so that it can be ordered."""
        with self._lock:
            record = self._records.current(item)
            if record is None:
                return None
            if record.wanted.rows != rows:  # a client used one name for two contents
                return Readiness.ABSENT
            if record.stage is Stage.READY:
                self._records.retain(record)
                return Readiness.READY
            if record.stage in PENDING:
                if (
                    record.until <= self._clock()
                ):  # the fetcher has its own deadlines; this is for one that died
                    self._records.drop(record)
                    return Readiness.ABSENT
                if len(record.waiters) < WAITERS_MAX:
                    record.waiters.add(request_id)
                return Readiness.PENDING
            return Readiness.FAILED if self._is_undecided(record, request_id) else Readiness.ABSENT

    def order(
        self,
        item: str,
        rows: int,
        request_id: str,
        producers: tuple[str, ...],
        expected: Peer | None,
        admitted: frozenset[str] | None,
        fetch: Callable[[FetchOrder], bool],
    ) -> Readiness:
        """Order *item*, of which :meth:`want` has just known nothing, unless *fetch* gets it at once; return its readiness."""
        with self._lock:
            if not self._records.has_room():
                return Readiness.ABSENT
            self._serial += 1
            wanted = FetchOrder(self._serial, item, rows, request_id, producers, admitted)
            until = self._clock() + self._pending_for
            self._records.add(ItemRecord(wanted, until=until, peer=expected, waiters={request_id}))
        if fetch(wanted):
            return self.want(item, rows, request_id) or Readiness.ABSENT
        with self._lock:
            self.orders.add(wanted)
        self._wake()
        return Readiness.PENDING

    def is_known(self, item: str) -> bool:
        """Whether the state of *item* is known, so that it is not ordered."""
        with self._lock:
            return self._records.current(item) is not None

    def is_ready(self, item: str) -> bool:
        """Whether *item* can be claimed; it then can be until :meth:`end_step`."""
        with self._lock:
            record = self._records.get(item)
            if record is None or record.stage is not Stage.READY:
                return False
            self._records.retain(record)
            return True

    def claim(self, item: str, reports: int) -> LoadOrder | None:
        """Keep the slot of *item* until so many ranks have reported it loaded; None if it is not ready."""
        with self._lock:
            record = self._records.get(item)
            if (
                record is None
                or record.slot is None
                or record.content is None
                or record.stage is not Stage.READY
            ):
                return None
            slot, content = record.slot, record.content
            self._slots.pin(slot, reports, self._clock() + _PIN_MAX)
            name = SlotName(slot.generation, slot.start, slot.content, slot.nbytes)
            return LoadOrder(item, name, content.rows, content.width, content.dtype)

    def end_step(self) -> None:
        """Forget the promises of this step, and pins whose reports will not come."""
        with self._lock:
            self._slots.end_step(self._clock())
            wake = self.orders.room_wanted
        if wake:
            self._wake()

    def on_loaded(self, generation: int) -> None:
        """Count one rank's report of a slot."""
        with self._lock:
            self._slots.on_report(generation)

    def on_unreadable(self, generation: int) -> None:
        """Make the item of a slot that a rank could not load bad."""
        with self._lock:
            slot = self._slots.get(generation)
            record = None if slot is None else self._records.get(slot.item)
            if record is not None and record.slot is slot:
                self._records.drop(record)

    def give_up(self, item: str) -> None:
        """Stop moving *item*; it is bad for a while."""
        with self._lock:
            record = self._records.get(item)
            if record is None:
                self._serial += 1
                record = self._records.add(ItemRecord(FetchOrder(self._serial, item, 0, "")))
            self._records.drop(record)
            record.undecided = False

    def drain_failures(self) -> list[EcFailure]:
        """Return the loads that failed since the last call."""
        if not self._failures:
            return []
        with self._lock:
            taken = list(self._failures)
            self._failures.clear()
            for failure in taken:
                record = self._records.get(failure.item)
                if record is not None:
                    record.undecided = False
            return taken

    def is_pending(self, item: str) -> bool:
        """Whether *item* is probed, waits for room or is on its way."""
        with self._lock:
            record = self._records.get(item)
            return record is not None and record.stage in PENDING

    def peer_of(self, item: str) -> Peer | None:
        """Return the producer of *item*, if it is known."""
        with self._lock:
            record = self._records.get(item)
            return None if record is None else record.peer

    def checksum(self, item: str) -> int | bytes | None:
        """Return the CRC-32 or the fingerprint of *item* by its producer's word, None while it has not come."""
        with self._lock:
            record = self._records.get(item)
            return None if record is None else record.checksum

    def transfer_start(self, item: str) -> int | None:
        """Return when the transfer of *item* began, None while it has not."""
        with self._lock:
            record = self._records.get(item)
            return record.began_ns or None if record is not None else None

    def is_rehearsed(self, item: str) -> bool:
        """Whether a fault drill makes *item* late."""
        with self._lock:
            record = self._records.get(item)
            return record is not None and record.rehearsed

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, transfers, the oldest one's start)."""
        with self._lock:
            return self._records.in_flight()

    # Below the lock.

    def _on_failed(self, record: ItemRecord, failure: EcFailure) -> None:
        if self.observed:
            record.undecided = True
            self._failures.append(failure)

    def _is_undecided(self, record: ItemRecord, request_id: str) -> bool:
        """Whether the failed load awaits a decision for this request."""
        if record.stage is not Stage.BAD:
            return False
        if not self.observed:
            return request_id in record.waiters
        # The observer may have been switched off, so the wait is bounded.
        return record.undecided and self._clock() < record.until - self._bad_for + _UNDECIDED_MAX
