"""Copies small items on the scheduler's thread, in the call that asks for them: their request then waits for no further step.

Only what is a copy and nothing else: whole, with its fingerprint, out of the memory of a producer on this host that answers, and into
room that nothing waits for. All else is the fetcher's, which begins anew. Where drills are allowed it is always the
fetcher's, because they hit its probes and transfers.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import LogLimit
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import (
    ItemGoneError,
    begin_copy,
    content_of,
)
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt, find_fitting
from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import TransferError

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import AreaCopy
    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Expected
    from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
    from penstock.instrumentation.vllm.zmq_ec.consumer.item_records import FetchOrder
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer, Producers
    from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Rehearsal, Reporter
    from penstock.instrumentation.vllm.zmq_ec.consumer.transfer_driver import TransferDriver
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SharedRegion

logger = logging.getLogger("vllm.penstock.zmq_ec")

SMALL: Final = 256 << 10
"""Bytes of the largest item that is copied: some 0.1 ms."""

LOOKS: Final = 32
"""Looks into the memory of a producer in one step of the scheduler, some 10 µs each."""

_LOG_INTERVAL: Final = 60.0
_A_STEP: Final = 512 << 10
"""Bytes that are copied in one step of the scheduler, in vain or not."""


class EarlyCopies:
    """The copies of one consumer. Only on the scheduler's thread."""

    def __init__(
        self,
        orders: FetchOrders,
        slots: Slots,
        producers: Producers,
        region: SharedRegion,
        expected: Expected,
        reporter: Reporter,
        rehearsal: Rehearsal,
        transfers: TransferDriver,
    ) -> None:
        """Share all of it with the fetcher."""
        self._orders = orders
        self._slots = slots
        self._producers = producers
        self._region = region
        self._expected = expected
        self._reporter = reporter
        self._rehearsal = rehearsal
        self._transfers = transfers
        self._bytes_left = _A_STEP
        self._looks_left = LOOKS
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL

    def end_step(self) -> None:
        """Allow the looks and the copies of another step."""
        self._bytes_left = _A_STEP
        self._looks_left = LOOKS

    def fetch(self, wanted: FetchOrder) -> bool:
        """Copy the item of an order that the fetcher does not know; return whether it is there now. Never raises."""
        if self._rehearsal.hit is not None or self._orders.room_wanted or self._is_spent:
            return False
        try:
            near = self._producers.near(wanted.producers, wanted.admitted)
            return any(self._copy(wanted, producer) for producer in near)
        except Exception:  # the fetcher tries it again; the engine must go on
            if self._log.admit("copy") is not None:
                logger.exception("ZmqECConnector: an item could not be copied at once")
            return False

    @property
    def _is_spent(self) -> bool:
        """Whether this step has looked or copied as much as it may."""
        return not self._looks_left or not self._bytes_left

    def _copy(self, wanted: FetchOrder, producer: Producer) -> bool:
        if self._is_spent:
            return False
        self._looks_left -= 1
        attempt = Attempt(wanted, source=producer)
        asked_ns = time.time_ns()
        area = producer.area
        attempt.found = find_fitting(area, wanted, self._expected, self._slots)
        if attempt.found is None or attempt.found.size > min(SMALL, self._bytes_left):
            return False
        now = time.monotonic()
        copy = begin_copy(area, attempt.found, now)
        if copy is None or not copy.ready:
            return False
        attempt.content = content_of(attempt.found)
        slot = self._orders.allocate(wanted, attempt.content, producer.peer)
        if slot is None:
            return False
        attempt.began_ns = time.time_ns()
        self._bytes_left -= attempt.found.size
        whole = False
        try:
            whole = self._fill(slot, copy, now)
        finally:
            if not whole:
                self._orders.on_attempt_ended(wanted, slot)
        if whole:
            # First: an item whose report fails is there all the same.
            self._orders.on_arrived(wanted, slot, copy.checksum)
            self._reporter.probe(attempt, producer, c.PROBE_RESULT_HIT, asked_ns)
            self._reporter.transfer(attempt, ok=True)
            self._transfers.add_copied(attempt)
        return whole

    def _fill(self, slot: Slot, copy: AreaCopy, now: float) -> bool:
        self._region.begin(slot.start)
        try:
            copy.advance(self._region.room(slot.content, slot.nbytes), now)
        except (ItemGoneError, TransferError):
            return False
        if copy.done:
            self._region.seal(slot.start, slot.generation, slot.nbytes)
        return copy.done
