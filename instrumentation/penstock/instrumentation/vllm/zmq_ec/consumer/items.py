"""What a consumer knows of each item: the one thing that the scheduler's thread and the fetcher's thread share.

The scheduler wants, claims and gives up; the fetcher takes what is wanted and tells what became of it. Everything here is
bookkeeping under one lock that is never held over IO or a copy. A *serial* names one attempt to get an item, so that the
fetcher finds out when the scheduler has given it up meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.zmq_ec.consumer.item_state import (
    PENDING,
    FetchOrder,
    ItemRecord,
    LoadOrder,
    Readiness,
    Stage,
)
from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SlotName

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.ec import EcFailure
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots
    from penstock.instrumentation.vllm.zmq_ec.wire import Content

KNOWN_MAX: Final = 8_192
"""Items without a slot that are remembered: clients name them."""

WAITERS_MAX: Final = 1_024

_FRESH: Final = 10.0  # seconds that a slot is kept for who waited for it
_UNTOLD_MAX: Final = 1.0  # seconds that a failure waits for the one who decides
_PIN_MAX: Final = 60.0  # seconds after which a step's report will not come any more


class Items:
    """All items of one consumer. Thread-safe.

    Attributes:
        observed: somebody takes the failures and decides; else they are settled by who waited.

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
        self._missing_for = missing_for
        self._bad_for = bad_for
        self._pending_for = pending_for
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, ItemRecord] = {}
        self._orders: deque[FetchOrder] = deque()
        self._failures: deque[EcFailure] = deque(maxlen=KNOWN_MAX)
        self._serial = 0
        self._room_wanted = False

    # The scheduler's side.

    def want(
        self,
        item: str,
        rows: int,
        request_id: str,
        producers: tuple[str, ...] = (),
        expected: Peer | None = None,
    ) -> Readiness:
        """Say that *request_id* needs *item* with so many rows, and have it fetched unless its fate is known."""
        with self._lock:
            known = self._current(item)
            if known is None:
                return self._order(item, rows, request_id, producers, expected)
            if known.wanted.rows != rows:  # a client used one name for two contents
                return Readiness.ABSENT
            if known.stage is Stage.READY:
                self._hold(known)
                return Readiness.READY
            if known.stage in PENDING:
                if (
                    known.until <= self._clock()
                ):  # the fetcher has its own deadlines; this is for one that died
                    self._drop(known)
                    return Readiness.ABSENT
                if len(known.waiters) < WAITERS_MAX:
                    known.waiters.add(request_id)
                return Readiness.PENDING
            return Readiness.FAILED if self._is_open(known, request_id) else Readiness.ABSENT

    def is_ready(self, item: str) -> bool:
        """Whether *item* can be claimed; it then can be until :meth:`end_step`."""
        with self._lock:
            known = self._known.get(item)
            if known is None or known.stage is not Stage.READY:
                return False
            self._hold(known)
            return True

    def claim(self, item: str, reports: int) -> LoadOrder | None:
        """Keep the slot of *item* until so many ranks have reported it loaded; None if it is not ready."""
        with self._lock:
            known = self._known.get(item)
            if known is None or known.slot is None or known.content is None or known.stage is not Stage.READY:
                return None
            slot, content = known.slot, known.content
            self._slots.pin(slot, reports, self._clock() + _PIN_MAX)
            name = SlotName(slot.generation, slot.start, slot.content, slot.nbytes)
            return LoadOrder(item, name, content.rows, content.width, content.dtype)

    def end_step(self) -> None:
        """Forget the promises of this step, and pins whose reports will not come."""
        with self._lock:
            self._slots.end_step(self._clock())
            wake = self._room_wanted
        if wake:
            self._wake()

    def loaded(self, generation: int) -> None:
        """Note that one rank is done with a slot."""
        with self._lock:
            self._slots.reported(generation)

    def unreadable(self, generation: int) -> None:
        """Note that a rank could not load a slot: its item is bad."""
        with self._lock:
            slot = self._slots.get(generation)
            known = None if slot is None else self._known.get(slot.item)
            if known is not None and known.slot is slot:
                self._drop(known)

    def give_up(self, item: str) -> None:
        """Stop moving *item*; it is bad for a while."""
        with self._lock:
            known = self._known.get(item)
            if known is None:
                self._serial += 1
                known = self._known[item] = ItemRecord(FetchOrder(self._serial, item, 0, ""))
            self._drop(known)
            known.untold = False

    def take_failures(self) -> list[EcFailure]:
        """Return the loads that failed since the last call."""
        if not self._failures:
            return []
        with self._lock:
            taken = list(self._failures)
            self._failures.clear()
            for failure in taken:
                known = self._known.get(failure.item)
                if known is not None:
                    known.untold = False
            return taken

    def is_pending(self, item: str) -> bool:
        """Whether *item* is probed, waits for room or is on its way."""
        with self._lock:
            known = self._known.get(item)
            return known is not None and known.stage in PENDING

    def peer_of(self, item: str) -> Peer | None:
        """Return who *item* comes from, if that is known."""
        with self._lock:
            known = self._known.get(item)
            return None if known is None else known.peer

    def began(self, item: str) -> int | None:
        """Return when the transfer of *item* began, None while it has not."""
        with self._lock:
            known = self._known.get(item)
            return known.began_ns or None if known is not None else None

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, transfers, the oldest one's start)."""
        with self._lock:
            found: dict[Peer, tuple[int, int]] = {}
            for known in self._known.values():
                if known.stage is Stage.MOVING and known.peer is not None:
                    count, oldest = found.get(known.peer, (0, known.began_ns))
                    found[known.peer] = (count + 1, min(oldest, known.began_ns))
            return [(peer, count, oldest) for peer, (count, oldest) in found.items()]

    # The fetcher's side. Each tells whether the attempt is still wanted.

    def take_orders(self) -> list[FetchOrder]:
        """Return what is wanted since the last call."""
        with self._lock:
            taken = list(self._orders)
            self._orders.clear()
            return taken

    def asks(self, wanted: FetchOrder, peer: Peer | None) -> None:
        """Note that *peer* is the only one that may still have *wanted*, None if several may."""
        with self._lock:
            known = self._of(wanted)
            if known is not None and known.stage is Stage.PROBING:
                known.peer = peer

    def place(self, wanted: FetchOrder, content: Content, peer: Peer) -> Slot | None:
        """Return a slot for *wanted*, which *peer* has, or None while there is no room."""
        with self._lock:
            known = self._of(wanted)
            if known is None:
                return None
            known.stage, known.peer = Stage.WAITING, peer
            slot, evicted = self._slots.allocate(wanted.item, content.size, self._clock())
            for each in evicted:
                self._known.pop(each.item, None)
            self._room_wanted = slot is None
            if slot is not None:
                known.stage, known.content, known.began_ns = Stage.MOVING, content, time.time_ns()
            return slot

    def is_wanted(self, wanted: FetchOrder) -> bool:
        """Whether anybody still waits for it."""
        with self._lock:
            return self._of(wanted) is not None

    def arrived(self, wanted: FetchOrder, slot: Slot) -> bool:
        """Let *slot*, which is whole, be loaded."""
        with self._lock:
            known = self._of(wanted)
            if known is None:
                self._slots.free(slot)
                return False
            known.stage, known.slot = Stage.READY, slot
            known.waiters.clear()
            self._slots.seal(slot, self._clock() + _FRESH)
            return True

    def again(self, wanted: FetchOrder, slot: Slot | None) -> bool:
        """Give the slot of a failed attempt back; another attempt follows."""
        with self._lock:
            if slot is not None:
                self._slots.free(slot)
            known = self._of(wanted)
            if known is None:
                return False
            known.stage, known.began_ns, known.peer = Stage.PROBING, 0, None
            return True

    def missed(self, wanted: FetchOrder) -> None:
        """Note that nobody has it."""
        with self._lock:
            known = self._of(wanted)
            if known is not None:
                known.stage, known.until = Stage.MISSING, self._clock() + self._missing_for
                known.began_ns, known.peer = 0, None
                known.waiters.clear()

    def failed(self, failure: EcFailure, wanted: FetchOrder, slot: Slot | None) -> None:
        """Note that it was there and could not be brought here."""
        with self._lock:
            if slot is not None:
                self._slots.free(slot)
            known = self._of(wanted)
            if known is None:
                return
            known.stage, known.until = Stage.BAD, self._clock() + self._bad_for
            if self.observed:
                known.untold = True
                self._failures.append(failure)

    # Below the lock.

    def _current(self, item: str) -> ItemRecord | None:
        known = self._known.get(item)
        if known is not None and known.stage in (Stage.MISSING, Stage.BAD) and known.until <= self._clock():
            del self._known[item]
            return None
        return known

    def _is_open(self, known: ItemRecord, request_id: str) -> bool:
        """Whether it is still to be decided what the failed load means for this request."""
        if known.stage is not Stage.BAD:
            return False
        if not self.observed:
            return request_id in known.waiters
        # Whoever was to take the failure may have been switched off: no request waits for that for long.
        return known.untold and self._clock() < known.until - self._bad_for + _UNTOLD_MAX

    def _order(
        self, item: str, rows: int, request_id: str, producers: tuple[str, ...], expected: Peer | None
    ) -> Readiness:
        if len(self._known) - len(self._slots) >= KNOWN_MAX and not self._make_room():
            return Readiness.ABSENT
        self._serial += 1
        wanted = FetchOrder(self._serial, item, rows, request_id, producers)
        until = self._clock() + self._pending_for
        self._known[item] = ItemRecord(wanted, until=until, peer=expected, waiters={request_id})
        self._orders.append(wanted)
        self._wake()
        return Readiness.PENDING

    def _make_room(self) -> bool:
        now = self._clock()
        for item, known in list(self._known.items()):
            if known.stage in (Stage.MISSING, Stage.BAD) and known.until <= now:
                del self._known[item]
        return len(self._known) - len(self._slots) < KNOWN_MAX

    def _of(self, wanted: FetchOrder) -> ItemRecord | None:
        known = self._known.get(wanted.item)
        if known is None or known.wanted.serial != wanted.serial or known.stage not in PENDING:
            return None
        return known

    def _hold(self, known: ItemRecord) -> None:
        if known.slot is not None and not known.slot.held:
            self._slots.hold(known.slot)

    def _drop(self, known: ItemRecord) -> None:
        """Make it bad. A slot that is being filled is the fetcher's to free; it finds that nobody wants the item."""
        if known.slot is not None:
            self._slots.doom(known.slot)
            known.slot = None
        known.stage, known.until = Stage.BAD, self._clock() + self._bad_for
        known.began_ns = 0
        known.waiters.clear()
