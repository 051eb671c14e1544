"""Transfers that have begun, and how each ends: whole, failed, or given up. On the fetcher's thread.

Only here a transfer is retried, from any producer, while retries are left. Each failure is
reported; an outcome follows the last alone, so no hook reports ``OUTCOME_RETRIED``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import AreaCopy
    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
    from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import ChunkedTransfer
    from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer
    from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Rehearsal, Reporter
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SharedRegion
    from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings

logger = logging.getLogger("vllm.penstock.zmq_ec")


class RunningTransfers:
    """Attempts that have a source and a slot, by the tag of their messages."""

    def __init__(
        self,
        orders: FetchOrders,
        region: SharedRegion,
        settings: ConsumerSettings,
        reporter: Reporter,
        rehearsal: Rehearsal,
        tags: Iterator[int],
        *,
        probe: Callable[[Attempt, float], None],
    ) -> None:
        """Start with none.

        Args:
            orders: where results are reported.
            region: where content is written.
            settings: the longest time of a transfer, and retries.
            reporter: of transfers and failures.
            rehearsal: the fault drills.
            tags: of all messages of the fetcher.
            probe: asks for an item again, at that monotonic time.

        """
        self._orders = orders
        self._region = region
        self._settings = settings
        self._reporter = reporter
        self._rehearsal = rehearsal
        self._tags = tags
        self._probe = probe
        self._attempts: dict[int, Attempt] = {}

    def __bool__(self) -> bool:
        return bool(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        """Yield those that move now; any of them may end meanwhile."""
        yield from list(self._attempts.values())

    def get(self, tag: int) -> Attempt | None:
        """Return the attempt whose messages have that tag."""
        return self._attempts.get(tag)

    def add(
        self, attempt: Attempt, source: Producer, transfer: ChunkedTransfer | AreaCopy, slot: Slot, now: float
    ) -> None:
        """Begin the *transfer* of an attempt from *source* to *slot*."""
        self._region.begin(slot.start)
        attempt.slot, attempt.tag, attempt.transfer = slot, next(self._tags), transfer
        attempt.began_ns = time.time_ns()
        attempt.deadline = now + self._settings.transfer_timeout
        self._rehearse(attempt, source, now)
        self._attempts[attempt.tag] = attempt
        source.busy += 1
        source.moving += 1

    def complete(self, attempt: Attempt, slot: Slot, now: float) -> None:
        """End a transfer whose content is whole; one that a drill hits fails."""
        drill = attempt.drill
        if drill is not None and drill.mode != SLOW:
            text = f"drill {drill.id}"
            self.fail(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, text, now, rehearsal=True)
            return
        transfer = attempt.transfer
        if transfer is None:
            return
        self._region.seal(slot.start, slot.generation, slot.nbytes)
        self._end(attempt)
        self._reporter.transfer(attempt, ok=True)
        self._orders.on_arrived(attempt.wanted, slot, transfer.checksum)

    def fail(
        self,
        attempt: Attempt,
        mode: int,
        error_type: int,
        text: str,
        now: float,
        *,
        rehearsal: bool = False,
    ) -> None:
        """End a failed transfer; retry while retries are left."""
        source = attempt.source
        self._end(attempt)
        attempt.failure = attempt.failed(
            mode, error_type, text, source, attempt.began_ns, rehearsal=rehearsal
        )
        self._reporter.transfer(attempt, ok=False)
        self._reporter.failed(attempt.failure)
        slot, attempt.slot, attempt.source, attempt.content = attempt.slot, None, None, None
        if attempt.retries >= self._settings.retries:
            logger.warning(
                "ZmqECConnector: item %s from %s: %s", attempt.wanted.item, attempt.failure.peer, text
            )
            self._orders.on_failed(attempt.failure, attempt.wanted, slot)
            return
        attempt.retries += 1
        if self._orders.on_attempt_ended(attempt.wanted, slot):
            self._probe(attempt, now)

    def abandon(self, attempt: Attempt) -> None:
        """End a transfer that the scheduler has given up; it has reported why."""
        self._reporter.transfer(attempt, ok=False)
        self._end(attempt)
        self._orders.on_attempt_ended(attempt.wanted, attempt.slot)

    def on_connection_lost(self, producer: Producer, why: str, error_type: int, now: float) -> None:
        """Fail what is on its way from *producer*, whose connection is lost."""
        mode = c.FAILURE_MODE_TIMEOUT if error_type == c.ERROR_TYPE_TIMEOUT else c.FAILURE_MODE_TRANSFER
        for attempt in [each for each in self._attempts.values() if each.source is producer]:
            self.fail(attempt, mode, error_type, why, now)

    def _rehearse(self, attempt: Attempt, source: Producer, now: float) -> None:
        """Let a fault drill hit the transfer that begins: it fails once it is complete, or is held."""
        attempt.drill = drill = self._rehearsal.of_transfer(source.peer.address)
        attempt.held_until = now
        if drill is not None and drill.mode == SLOW:
            attempt.held_until = now + drill.delay_ns / NANOS
            self._orders.set_rehearsed(attempt.wanted)

    def _end(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.tag, None)
        attempt.transfer = None
        if attempt.source is not None:
            attempt.source.busy -= 1
            attempt.source.moving -= 1
