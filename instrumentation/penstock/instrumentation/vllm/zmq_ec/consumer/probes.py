"""The probes of a fetcher: which producer has an item; and the items whose source is found, that wait for room or for their turn.

On the fetcher's thread.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import content_of
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import REFUSALS, find_fitting, misfit
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt, Expected
    from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ProducerConnection
    from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer, Producers
    from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Rehearsal, Reporter
    from penstock.instrumentation.vllm.zmq_ec.memory import Slots
    from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import FoundItem

logger = logging.getLogger("vllm.penstock.zmq_ec")


class Probes:
    """Probes without an answer. The first producer that has an item is its source; the others' answers are dropped."""

    def __init__(
        self,
        orders: FetchOrders,
        slots: Slots,
        producers: Producers,
        expected: Expected,
        reporter: Reporter,
        tags: Iterator[int],
        timeout: float,
        rehearsal: Rehearsal,
    ) -> None:
        """Start with none; *timeout* is in seconds, *tags* are those of all messages of the fetcher."""
        self._orders = orders
        self._slots = slots
        self._producers = producers
        self._expected = expected
        self._reporter = reporter
        self._tags = tags
        self._timeout = timeout
        self._rehearsal = rehearsal
        self._attempts: dict[int, Attempt] = {}

    def __bool__(self) -> bool:
        return bool(self._attempts)

    def start(self, attempt: Attempt, now: float) -> Attempt | None:
        """Look for the item in the memory of the producers on this host; else ask every producer that is admitted and available.

        Return the attempt if it now has a source.
        """
        wanted = attempt.wanted
        attempt.deadline = now + self._timeout
        for producer in self._producers.available(wanted.producers, now, wanted.admitted):
            drill = self._rehearsal.of_probe(producer.peer.address)
            if drill is not None:
                text = f"drill {drill.id}"
                self._reporter.probe_failed(
                    attempt, producer, time.time_ns(), c.ERROR_TYPE_OTHER, text, rehearsal=True
                )
                continue
            connection = producer.connection
            if connection is not None and self._find(attempt, producer, connection):
                return attempt
            tag = next(self._tags)
            if connection is not None and connection.send(
                protocol.Probe(tag, self._expected.model, wanted.item, connection.fingerprints)
            ):
                attempt.asked[tag] = (producer, time.time_ns())
                self._attempts[tag] = attempt
                producer.busy += 1
        self._await(attempt)
        return None

    def expects(self, producer: Producer, tag: int) -> bool:
        """Whether *tag* is that of a probe that *producer* has not answered."""
        attempt = self._attempts.get(tag)
        return attempt is not None and attempt.asked[tag][0] is producer

    def on_answer(self, answer: protocol.Answer) -> Attempt | None:
        """Take an expected answer; return the attempt if it now has a source, so that its transfer may begin."""
        attempt = self._attempts[answer.tag]
        producer, sent_ns = self._forget(attempt, answer.tag)
        if isinstance(answer, protocol.Have):
            problem = self._expected.problem(answer)
            unfit = problem or misfit(attempt.wanted, answer.content, self._slots)
            if not unfit:
                self._on_hit(attempt, producer, answer.content, None, sent_ns)
                return attempt
            # Of another shape than the request needs: requests choose the names of items, and two may choose the same.
            self._reporter.probe_failed(
                attempt, producer, sent_ns, c.ERROR_TYPE_INCOMPATIBLE, unfit, blameless=not problem
            )
        elif isinstance(answer, protocol.Refused):
            error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
            self._reporter.probe_failed(attempt, producer, sent_ns, error_type, answer.text)
        else:
            self._reporter.probe(attempt, producer, c.PROBE_RESULT_MISS, sent_ns)
        self._await(attempt)
        return None

    def on_connection_lost(self, producer: Producer, why: str, error_type: int) -> None:
        """Fail the probes of *producer*."""
        for tag, attempt in list(self._attempts.items()):
            if tag in attempt.asked and attempt.asked[tag][0] is producer:
                _, sent_ns = self._forget(attempt, tag)
                self._reporter.probe_failed(attempt, producer, sent_ns, error_type, why)
                self._await(attempt)

    def expire(self, now: float) -> None:
        """Fail the probes that are over their deadline."""
        for attempt in set(self._attempts.values()):
            if attempt.deadline <= now:
                self._on_timeout(attempt, now)

    def _find(self, attempt: Attempt, producer: Producer, connection: ProducerConnection) -> bool:
        """Find the item in the producer's memory, if that is on this host; one that does not fit is found by message."""
        began = time.time_ns()
        found = find_fitting(connection.area, attempt.wanted, self._expected, self._slots)
        if found is None:
            return False
        self._on_hit(attempt, producer, content_of(found), found, began)
        return True

    def _on_hit(
        self,
        attempt: Attempt,
        producer: Producer,
        content: protocol.Content,
        found: FoundItem | None,
        began_ns: int,
    ) -> None:
        self._reporter.probe(attempt, producer, c.PROBE_RESULT_HIT, began_ns)
        for tag in list(attempt.asked):  # first hit wins
            self._forget(attempt, tag)
        attempt.source, attempt.content, attempt.found = producer, content, found

    def _await(self, attempt: Attempt) -> None:
        """Record the only producer that an attempt still waits for; without any, the item is missing."""
        if not attempt.asked:
            report_missing(self._orders, attempt)
            return
        peers = {producer.peer for producer, _ in attempt.asked.values()}
        self._orders.set_peer(attempt.wanted, peers.pop() if len(peers) == 1 else None)

    def _forget(self, attempt: Attempt, tag: int) -> tuple[Producer, int]:
        del self._attempts[tag]
        producer, sent_ns = attempt.asked.pop(tag)
        producer.busy -= 1
        return producer, sent_ns

    def _on_timeout(self, attempt: Attempt, now: float) -> None:
        text = f"no answer within {self._timeout} s"
        for tag in list(attempt.asked):
            producer, sent_ns = self._forget(attempt, tag)
            producer.on_failure(now, text)
            self._reporter.probe_failed(attempt, producer, sent_ns, c.ERROR_TYPE_TIMEOUT, text)
        report_missing(self._orders, attempt)


def report_missing(orders: FetchOrders, attempt: Attempt) -> None:
    """No producer has it: a miss, or a failure if an earlier transfer of it failed."""
    if attempt.failure is not None:
        orders.on_failed(attempt.failure, attempt.wanted, None)
    else:
        orders.on_missing(attempt.wanted)


class WaitingAttempts:
    """Attempts that have a source and no slot, in the order of their hits."""

    def __init__(self, orders: FetchOrders, timeout: float, probe: Callable[[Attempt, float], None]) -> None:
        """Start with none; *timeout* is in seconds, *probe* asks for an item again, at that monotonic time."""
        self._orders = orders
        self._timeout = timeout
        self._probe = probe
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
        if self._orders.on_attempt_ended(attempt.wanted, None):
            self._probe(attempt, now)

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
