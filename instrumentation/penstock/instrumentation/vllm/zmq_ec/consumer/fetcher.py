"""Fetches items on a thread of a consumer's scheduler process. The thread owns all sockets; the scheduler never waits for it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import zmq
from penstock.instrumentation.core import LogLimit
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import REFUSALS, Attempt, Expected
from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ConnectionEnd
from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer, Producers
from penstock.instrumentation.vllm.zmq_ec.consumer.transfer import Transfer, TransferError
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.consumer.items import Items
    from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Reporter
    from penstock.instrumentation.vllm.zmq_ec.memory import Slots
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SharedRegion
    from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ClientKeys

logger = logging.getLogger("vllm.penstock.zmq_ec")

_TICK: Final = 0.01
_MOVING_MAX: Final = 4
_STOP_WAIT: Final = 5.0
_LOG_INTERVAL: Final = 60.0

_ERROR_TYPES: Final = {
    ConnectionEnd.REFUSED: c.ERROR_TYPE_REFUSED,
    ConnectionEnd.INCOMPATIBLE: c.ERROR_TYPE_INCOMPATIBLE,
    ConnectionEnd.CLOSED: c.ERROR_TYPE_REMOTE_RESET,
    ConnectionEnd.RESET: c.ERROR_TYPE_REMOTE_RESET,
    ConnectionEnd.DENIED: c.ERROR_TYPE_INCOMPATIBLE,
    ConnectionEnd.NO_CURVE_HERE: c.ERROR_TYPE_INCOMPATIBLE,
    ConnectionEnd.NO_CURVE_THERE: c.ERROR_TYPE_INCOMPATIBLE,
    ConnectionEnd.CLOSED_IN_CURVE: c.ERROR_TYPE_REMOTE_RESET,
}


class Fetcher:
    """Executes the orders of *items*, writing to *region*, from construction to :meth:`stop`."""

    def __init__(
        self,
        items: Items,
        slots: Slots,
        region: SharedRegion,
        settings: ConsumerSettings,
        expected: Expected,
        reporter: Reporter,
        wake: int,
        keys: ClientKeys | None = None,
    ) -> None:
        """Start; *wake* is an eventfd that *items* writes to, *keys* are for CURVE."""
        self._reporter = reporter
        self._items = items
        self._slots = slots
        self._region = region
        self._settings = settings
        self._expected = expected
        self._wake = wake
        self._tags = itertools.count(1)
        self._probes: dict[int, Attempt] = {}
        self._transfers: dict[int, Attempt] = {}
        self._waiting: dict[int, Attempt] = {}
        self._next_scan = 0.0
        self._stopping = threading.Event()
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL
        self._context = zmq.Context()
        self._producers = Producers(self._context, settings.producers, keys)
        self._producers.poller.register(wake, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="penstock-ec-fetcher", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Stop; return whether the thread has ended, so that its memory may be released. Idempotent."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(_STOP_WAIT)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._turn()
                except Exception:  # one item must not end the service
                    if self._log.admit("turn") is not None:
                        logger.exception("ZmqECConnector: the fetcher failed")
                    # An error that stays must not take the processor from the model.
                    self._stopping.wait(_TICK)
        finally:
            self._producers.close()
            self._context.term()

    def _turn(self) -> None:
        busy = self._probes or self._transfers or self._waiting
        for socket, _ in self._producers.poller.poll(_TICK * 1000 if busy else None):
            if socket == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                continue
            producer = self._producers.find(socket)
            if producer is not None:
                self._read_answers(producer)
        now = time.monotonic()
        for wanted in self._items.drain_orders():
            self._probe(Attempt(wanted), now)
        if self._waiting:
            self._start_transfers(now)
        if now >= self._next_scan:
            self._next_scan = now + _TICK
            self._expire(now)

    def _read_answers(self, producer: Producer) -> None:
        connection = producer.connection
        if connection is None:  # closed by an earlier event of this turn
            return
        for answer, payload in connection.receive():
            producer.on_answer()
            self._on_answer(producer, answer, payload)
            if producer.connection is not connection:
                return
        end = connection.check_end()
        if end is not None:
            self._on_connection_lost(producer, end.value, _ERROR_TYPES[end])

    def _on_answer(self, producer: Producer, answer: protocol.Answer, payload: Any) -> None:
        """Dispatch an answer to the attempt that expects it from *producer*; a late answer is dropped."""
        now = time.monotonic()
        attempt = self._probes.get(answer.tag)
        if attempt is not None and attempt.asked[answer.tag][0] is producer:
            self._on_probe_answer(attempt, answer, now)
            return
        attempt = self._transfers.get(answer.tag)
        if attempt is None or attempt.source is not producer:
            return
        match answer:
            case protocol.Chunk():
                self._on_chunk(attempt, answer, payload, now)
            case protocol.Miss():
                self._on_transfer_failed(
                    attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, "the producer evicted it", now
                )
            case protocol.Refused():
                error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
                self._on_transfer_failed(attempt, c.FAILURE_MODE_TRANSFER, error_type, answer.text, now)

    # Probes.

    def _probe(self, attempt: Attempt, now: float) -> None:
        wanted = attempt.wanted
        attempt.deadline = now + self._settings.probe_timeout
        for producer in self._producers.available(wanted.producers, now):
            tag = next(self._tags)
            connection = producer.connection
            if connection is not None and connection.send(
                protocol.Probe(tag, self._expected.model, wanted.item)
            ):
                attempt.asked[tag] = (producer, time.time_ns())
                self._probes[tag] = attempt
                producer.busy += 1
        self._await_probes(attempt)

    def _await_probes(self, attempt: Attempt) -> None:
        """Record the only producer that an attempt still waits for; without any, the item is missing."""
        if not attempt.asked:
            self._on_missing(attempt)
            return
        peers = {producer.peer for producer, _ in attempt.asked.values()}
        self._items.set_peer(attempt.wanted, peers.pop() if len(peers) == 1 else None)

    def _on_probe_answer(self, attempt: Attempt, answer: protocol.Answer, now: float) -> None:
        producer, sent_ns = self._forget_probe(attempt, answer.tag)
        if isinstance(answer, protocol.Have):
            problem = self._expected.problem(answer, attempt.wanted.rows)
            if not problem and not self._slots.fits(answer.content.size):
                problem = (
                    f"its {answer.content.size} bytes are more than the shared memory takes (region_bytes)"
                )
            if not problem:
                self._reporter.probe(attempt, producer, c.PROBE_RESULT_HIT, sent_ns)
                for tag in list(attempt.asked):  # first hit wins
                    self._forget_probe(attempt, tag)
                attempt.source, attempt.content = producer, answer.content
                attempt.deadline = now + self._settings.start_timeout
                self._items.set_peer(attempt.wanted, producer.peer)
                self._waiting[attempt.wanted.serial] = attempt
                producer.waited_for += 1
                return
            self._reporter.probe_failed(attempt, producer, sent_ns, c.ERROR_TYPE_INCOMPATIBLE, problem)
        elif isinstance(answer, protocol.Refused):
            error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
            self._reporter.probe_failed(attempt, producer, sent_ns, error_type, answer.text)
        else:
            self._reporter.probe(attempt, producer, c.PROBE_RESULT_MISS, sent_ns)
        self._await_probes(attempt)

    def _forget_probe(self, attempt: Attempt, tag: int) -> tuple[Producer, int]:
        del self._probes[tag]
        producer, sent_ns = attempt.asked.pop(tag)
        producer.busy -= 1
        return producer, sent_ns

    def _on_missing(self, attempt: Attempt) -> None:
        """No producer has it: a miss, or a failure if an earlier transfer of it failed."""
        if attempt.failure is not None:
            self._items.on_failed(attempt.failure, attempt.wanted, None)
        else:
            self._items.on_missing(attempt.wanted)

    # Transfers.

    def _start_transfers(self, now: float) -> None:
        """Start transfers in the order of their hits; one that needs room is not overtaken."""
        for serial, attempt in list(self._waiting.items()):
            source, content = attempt.source, attempt.content
            if source is None or content is None or not self._items.is_wanted(attempt.wanted):
                self._stop_waiting(serial)
                continue
            if source.moving >= _MOVING_MAX:
                continue
            slot = self._items.allocate(attempt.wanted, content, source.peer)
            if slot is None:
                break
            self._stop_waiting(serial)
            self._region.begin(slot.start)
            attempt.slot, attempt.transfer, attempt.tag = slot, Transfer(content, now), next(self._tags)
            attempt.began_ns = time.time_ns()
            attempt.deadline = now + self._settings.transfer_timeout
            self._transfers[attempt.tag] = attempt
            source.busy += 1
            source.moving += 1
            self._request_chunks(attempt, now)

    def _stop_waiting(self, serial: int) -> None:
        source = self._waiting.pop(serial).source
        if source is not None:
            source.waited_for -= 1

    def _request_chunks(self, attempt: Attempt, now: float) -> None:
        source, transfer = attempt.source, attempt.transfer
        if source is None or transfer is None:
            return
        for offset, length in transfer.requests():
            fetch = protocol.Fetch(
                attempt.tag, self._expected.model, transfer.content.crc, offset, length, attempt.wanted.item
            )
            if source.connection is None or not source.connection.send(fetch):
                self._on_transfer_failed(
                    attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, "it cannot be asked for chunks", now
                )
                return

    def _on_chunk(self, attempt: Attempt, answer: protocol.Chunk, payload: Any, now: float) -> None:
        transfer, slot = attempt.transfer, attempt.slot
        if transfer is None or slot is None:
            return
        try:
            offset = transfer.accept(answer, payload, now)
        except TransferError as error:
            self._on_transfer_failed(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, str(error), now)
            return
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
            return
        self._region.write(slot.content + offset, payload)
        if not transfer.done:
            self._request_chunks(attempt, now)
            return
        self._region.seal(slot.start, slot.generation, slot.nbytes)
        self._end_transfer(attempt)
        self._reporter.transfer(attempt, ok=True)
        self._items.on_arrived(attempt.wanted, slot)

    def _on_transfer_failed(
        self, attempt: Attempt, mode: int, error_type: int, text: str, now: float
    ) -> None:
        """End a failed transfer; retry while retries are left."""
        source = attempt.source
        self._end_transfer(attempt)
        attempt.failure = attempt.failed(mode, error_type, text, source, attempt.began_ns)
        self._reporter.transfer(attempt, ok=False)
        self._reporter.failed(attempt.failure)
        slot, attempt.slot, attempt.source, attempt.content = attempt.slot, None, None, None
        if attempt.retries >= self._settings.retries:
            logger.warning(
                "ZmqECConnector: item %s from %s: %s", attempt.wanted.item, attempt.failure.peer, text
            )
            self._items.on_failed(attempt.failure, attempt.wanted, slot)
            return
        attempt.retries += 1
        if self._items.on_retry(attempt.wanted, slot):
            self._probe(attempt, now)

    def _abandon(self, attempt: Attempt) -> None:
        """End a transfer that the scheduler has given up; it has reported why."""
        self._reporter.transfer(attempt, ok=False)
        self._end_transfer(attempt)
        self._items.on_retry(attempt.wanted, attempt.slot)

    def _end_transfer(self, attempt: Attempt) -> None:
        self._transfers.pop(attempt.tag, None)
        attempt.transfer = None
        if attempt.source is not None:
            attempt.source.busy -= 1
            attempt.source.moving -= 1

    # Time and loss.

    def _expire(self, now: float) -> None:
        for attempt in set(self._probes.values()):
            if attempt.deadline <= now:
                self._on_probe_timeout(attempt, now)
        for serial, attempt in list(self._waiting.items()):
            if attempt.deadline <= now:
                self._stop_waiting(serial)
                logger.warning("ZmqECConnector: no room for item %s (region_bytes)", attempt.wanted.item)
                self._on_missing(attempt)
        for attempt in list(self._transfers.values()):
            self._check_transfer(attempt, now)

    def _on_probe_timeout(self, attempt: Attempt, now: float) -> None:
        text = f"no answer within {self._settings.probe_timeout} s"
        for tag in list(attempt.asked):
            producer, sent_ns = self._forget_probe(attempt, tag)
            producer.on_failure(now, text)
            self._reporter.probe_failed(attempt, producer, sent_ns, c.ERROR_TYPE_TIMEOUT, text)
        self._on_missing(attempt)

    def _check_transfer(self, attempt: Attempt, now: float) -> None:
        transfer, source = attempt.transfer, attempt.source
        if transfer is None or source is None:  # it ended in this turn
            return
        idle = now - transfer.progress
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
        elif idle >= self._settings.idle_timeout:
            # Not only this item: what else it sends would be as late, and what is queued to it must go.
            self._on_connection_lost(source, f"nothing came for {idle:.1f} s", c.ERROR_TYPE_TIMEOUT)
        elif attempt.deadline <= now:
            text = f"not whole after {self._settings.transfer_timeout} s"
            self._on_transfer_failed(attempt, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, text, now)

    def _on_connection_lost(self, producer: Producer, why: str, error_type: int) -> None:
        """Drop the connection; its transfers and probes fail, its waiting items are probed again."""
        now = time.monotonic()
        producer.on_failure(now, why)
        self._producers.disconnect(producer)
        mode = c.FAILURE_MODE_TIMEOUT if error_type == c.ERROR_TYPE_TIMEOUT else c.FAILURE_MODE_TRANSFER
        for attempt in [each for each in self._transfers.values() if each.source is producer]:
            self._on_transfer_failed(attempt, mode, error_type, why, now)
        for tag, attempt in list(self._probes.items()):
            if tag in attempt.asked and attempt.asked[tag][0] is producer:
                _, sent_ns = self._forget_probe(attempt, tag)
                self._reporter.probe_failed(attempt, producer, sent_ns, error_type, why)
                self._await_probes(attempt)
        for serial, attempt in list(self._waiting.items()):
            if attempt.source is producer:
                self._stop_waiting(serial)
                attempt.source = attempt.content = None
                if self._items.on_retry(attempt.wanted, None):
                    self._probe(attempt, now)
