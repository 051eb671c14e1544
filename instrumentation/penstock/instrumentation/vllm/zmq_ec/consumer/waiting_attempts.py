"""Items whose source has been found, and that wait for room or for their turn. On the fetcher's thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.instrumentation.vllm.zmq_ec.consumer.probes import report_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
    from penstock.instrumentation.vllm.zmq_ec.consumer.item_orders import ItemOrders
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer

logger = logging.getLogger("vllm.penstock.zmq_ec")


class WaitingAttempts:
    """Attempts that have a source and no slot, in the order of their hits."""

    def __init__(self, orders: ItemOrders, timeout: float, retry: Callable[[Attempt, float], None]) -> None:
        """Start with none; *timeout* is in seconds, *retry* probes for an item again, at that monotonic time."""
        self._orders = orders
        self._timeout = timeout
        self._retry = retry
        self._attempts: dict[int, Attempt] = {}

    def __bool__(self) -> bool:
        return bool(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        """Yield those that are still wanted; any of them may leave meanwhile."""
        for serial, attempt in list(self._attempts.items()):
            if serial not in self._attempts:  # its producer has been lost since
                continue
            if self._orders.is_wanted(attempt.wanted):
                yield attempt
            else:
                self.remove(attempt)

    def add(self, attempt: Attempt, now: float) -> None:
        """Take an attempt whose source has just been found."""
        source = attempt.source
        if source is None:
            return
        attempt.deadline = now + self._timeout
        self._orders.set_peer(attempt.wanted, source.peer)
        self._attempts[attempt.wanted.serial] = attempt
        source.waited_for += 1

    def remove(self, attempt: Attempt) -> None:
        """Let it wait no more."""
        del self._attempts[attempt.wanted.serial]
        if attempt.source is not None:
            attempt.source.waited_for -= 1

    def probe_again(self, attempt: Attempt, now: float) -> None:
        """Find another source for it."""
        self.remove(attempt)
        attempt.source = attempt.content = None
        if self._orders.on_retry(attempt.wanted, None):
            self._retry(attempt, now)

    def on_connection_lost(self, producer: Producer, now: float) -> None:
        """Find another source for what was to come from *producer*."""
        for attempt in [each for each in self._attempts.values() if each.source is producer]:
            self.probe_again(attempt, now)

    def expire(self, now: float) -> None:
        """Give up those that are over their deadline."""
        for attempt in [each for each in self._attempts.values() if each.deadline <= now]:
            self.remove(attempt)
            logger.warning("ZmqECConnector: no room for item %s (region_bytes)", attempt.wanted.item)
            report_missing(self._orders, attempt)
