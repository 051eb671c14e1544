"""The thread of a consumer's scheduler process that gets items. It owns all sockets; the scheduler never waits for it."""

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

logger = logging.getLogger("vllm.penstock.zmq_ec")

_TICK: Final = 0.01
_MOVING_MAX: Final = 4
_STOP_WAIT: Final = 5.0
_LOG_INTERVAL: Final = 60.0

_FATES: Final = {
    ConnectionEnd.REFUSED: c.ERROR_TYPE_REFUSED,
    ConnectionEnd.INCOMPATIBLE: c.ERROR_TYPE_INCOMPATIBLE,
    ConnectionEnd.CLOSED: c.ERROR_TYPE_REMOTE_RESET,
    ConnectionEnd.RESET: c.ERROR_TYPE_REMOTE_RESET,
    ConnectionEnd.ENDLESS: c.ERROR_TYPE_CORRUPT,
}


class Fetcher:
    """Gets what *items* wants into *region*, from its construction to :meth:`stop`."""

    def __init__(
        self,
        items: Items,
        slots: Slots,
        region: SharedRegion,
        settings: ConsumerSettings,
        expected: Expected,
        telling: Reporter,
        wake: int,
    ) -> None:
        """Start; *wake* is an eventfd that *items* writes to."""
        self._telling = telling
        self._items = items
        self._slots = slots
        self._region = region
        self._settings = settings
        self._expected = expected
        self._wake = wake
        self._tags = itertools.count(1)
        self._probes: dict[int, Attempt] = {}
        self._moves: dict[int, Attempt] = {}
        self._waiting: dict[int, Attempt] = {}
        self._next_scan = 0.0
        self._stopping = threading.Event()
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL
        self._context = zmq.Context()
        self._producers = Producers(self._context, settings.producers)
        self._producers.poller.register(wake, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="penstock-ec-fetcher", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """End; tell whether the thread has ended, so that its memory may go. Idempotent."""
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
        busy = self._probes or self._moves or self._waiting
        looking = self._producers.wanting_look()
        for socket, _ in self._producers.poller.poll(_TICK * 1000 if busy or looking else None):
            if socket == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                continue
            producer = self._producers.of(socket)
            if producer is not None:
                self._hear(producer)
        for producer in looking:
            self._hear(producer)
        now = time.monotonic()
        for wanted in self._items.take_orders():
            self._probe(Attempt(wanted), now)
        if self._waiting:
            self._start_waiting(now)
        if now >= self._next_scan:
            self._next_scan = now + _TICK
            self._expire(now)

    def _hear(self, producer: Producer) -> None:
        link = producer.link
        if link is None:  # closed by an earlier event of this turn
            return
        for answer, payload in link.receive():
            producer.alive()
            self._take(producer, answer, payload)
            if producer.link is not link:
                return
        fate = link.fate()
        if fate is not None:
            self._lost(producer, fate.value, _FATES[fate])

    def _take(self, producer: Producer, answer: protocol.Answer, payload: Any) -> None:
        """Give an answer to the attempt that waits for it from *producer*; a late one waits for nobody."""
        now = time.monotonic()
        attempt = self._probes.get(answer.tag)
        if attempt is not None and attempt.asked[answer.tag][0] is producer:
            self._probed(attempt, answer, now)
            return
        attempt = self._moves.get(answer.tag)
        if attempt is None or attempt.source is not producer:
            return
        match answer:
            case protocol.Chunk():
                self._chunk(attempt, answer, payload, now)
            case protocol.Miss():
                self._broken(
                    attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, "the producer evicted it", now
                )
            case protocol.Refused():
                error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
                self._broken(attempt, c.FAILURE_MODE_TRANSFER, error_type, answer.text, now)

    # Probes.

    def _probe(self, attempt: Attempt, now: float) -> None:
        wanted = attempt.wanted
        attempt.deadline = now + self._settings.probe_timeout
        for producer in self._producers.to_ask(wanted.producers, now):
            tag = next(self._tags)
            link = producer.link
            if link is not None and link.send(protocol.Probe(tag, self._expected.model, wanted.item)):
                attempt.asked[tag] = (producer, time.time_ns())
                self._probes[tag] = attempt
                producer.busy += 1
        self._asked(attempt)

    def _asked(self, attempt: Attempt) -> None:
        """Say which producer an attempt waits for, if it is one; without any the item is missing."""
        if not attempt.asked:
            self._nobody(attempt)
            return
        peers = {producer.peer for producer, _ in attempt.asked.values()}
        self._items.asks(attempt.wanted, peers.pop() if len(peers) == 1 else None)

    def _probed(self, attempt: Attempt, answer: protocol.Answer, now: float) -> None:
        producer, sent_ns = self._unask(attempt, answer.tag)
        if isinstance(answer, protocol.Have):
            problem = self._expected.problem(answer, attempt.wanted.rows)
            if not problem and not self._slots.fits(answer.content.size):
                problem = (
                    f"its {answer.content.size} bytes are more than the shared memory takes (region_bytes)"
                )
            if not problem:
                self._telling.probe(attempt, producer, c.PROBE_RESULT_HIT, sent_ns)
                for tag in list(attempt.asked):  # first hit wins
                    self._unask(attempt, tag)
                attempt.source, attempt.content = producer, answer.content
                attempt.deadline = now + self._settings.start_timeout
                self._items.asks(attempt.wanted, producer.peer)
                self._waiting[attempt.wanted.serial] = attempt
                producer.waited_for += 1
                return
            self._telling.probe_failed(attempt, producer, sent_ns, c.ERROR_TYPE_INCOMPATIBLE, problem)
        elif isinstance(answer, protocol.Refused):
            error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
            self._telling.probe_failed(attempt, producer, sent_ns, error_type, answer.text)
        else:
            self._telling.probe(attempt, producer, c.PROBE_RESULT_MISS, sent_ns)
        self._asked(attempt)

    def _unask(self, attempt: Attempt, tag: int) -> tuple[Producer, int]:
        del self._probes[tag]
        producer, sent_ns = attempt.asked.pop(tag)
        producer.busy -= 1
        return producer, sent_ns

    def _nobody(self, attempt: Attempt) -> None:
        """Nobody has it: a miss, unless it was there before and its transfer failed."""
        if attempt.failure is not None:
            self._items.failed(attempt.failure, attempt.wanted, None)
        else:
            self._items.missed(attempt.wanted)

    # Transfers.

    def _start_waiting(self, now: float) -> None:
        """Begin transfers in the order in which they were found; one that needs room is not overtaken."""
        for serial, attempt in list(self._waiting.items()):
            source, content = attempt.source, attempt.content
            if source is None or content is None or not self._items.is_wanted(attempt.wanted):
                self._waits_no_longer(serial)
                continue
            if source.moving >= _MOVING_MAX:
                continue
            slot = self._items.place(attempt.wanted, content, source.peer)
            if slot is None:
                break
            self._waits_no_longer(serial)
            self._region.begin(slot.start)
            attempt.slot, attempt.transfer, attempt.tag = slot, Transfer(content, now), next(self._tags)
            attempt.began_ns = time.time_ns()
            attempt.deadline = now + self._settings.transfer_timeout
            self._moves[attempt.tag] = attempt
            source.busy += 1
            source.moving += 1
            self._ask_chunks(attempt, now)

    def _waits_no_longer(self, serial: int) -> None:
        source = self._waiting.pop(serial).source
        if source is not None:
            source.waited_for -= 1

    def _ask_chunks(self, attempt: Attempt, now: float) -> None:
        source, transfer = attempt.source, attempt.transfer
        if source is None or transfer is None:
            return
        for offset, length in transfer.requests():
            fetch = protocol.Fetch(
                attempt.tag, self._expected.model, transfer.content.crc, offset, length, attempt.wanted.item
            )
            if source.link is None or not source.link.send(fetch):
                self._broken(
                    attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, "it cannot be asked for chunks", now
                )
                return

    def _chunk(self, attempt: Attempt, answer: protocol.Chunk, payload: Any, now: float) -> None:
        transfer, slot = attempt.transfer, attempt.slot
        if transfer is None or slot is None:
            return
        try:
            offset = transfer.accept(answer, payload, now)
        except TransferError as error:
            self._broken(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, str(error), now)
            return
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
            return
        self._region.write(slot.content + offset, payload)
        if not transfer.done:
            self._ask_chunks(attempt, now)
            return
        self._region.seal(slot.start, slot.generation, slot.nbytes)
        self._end_move(attempt)
        self._telling.transfer(attempt, ok=True)
        self._items.arrived(attempt.wanted, slot)

    def _broken(self, attempt: Attempt, mode: int, error_type: int, text: str, now: float) -> None:
        """End a transfer that failed, and try again while retries are left."""
        source = attempt.source
        self._end_move(attempt)
        attempt.failure = attempt.failed(mode, error_type, text, source, attempt.began_ns)
        self._telling.transfer(attempt, ok=False)
        self._telling.failed(attempt.failure)
        slot, attempt.slot, attempt.source, attempt.content = attempt.slot, None, None, None
        if attempt.retries >= self._settings.retries:
            logger.warning(
                "ZmqECConnector: item %s from %s: %s", attempt.wanted.item, attempt.failure.peer, text
            )
            self._items.failed(attempt.failure, attempt.wanted, slot)
            return
        attempt.retries += 1
        if self._items.again(attempt.wanted, slot):
            self._probe(attempt, now)

    def _abandon(self, attempt: Attempt) -> None:
        """End a transfer that nobody wants any more; who gave it up has told why."""
        self._telling.transfer(attempt, ok=False)
        self._end_move(attempt)
        self._items.again(attempt.wanted, attempt.slot)

    def _end_move(self, attempt: Attempt) -> None:
        self._moves.pop(attempt.tag, None)
        attempt.transfer = None
        if attempt.source is not None:
            attempt.source.busy -= 1
            attempt.source.moving -= 1

    # Time and loss.

    def _expire(self, now: float) -> None:
        for attempt in set(self._probes.values()):
            if attempt.deadline <= now:
                self._no_answer(attempt, now)
        for serial, attempt in list(self._waiting.items()):
            if attempt.deadline <= now:
                self._waits_no_longer(serial)
                logger.warning("ZmqECConnector: no room for item %s (region_bytes)", attempt.wanted.item)
                self._nobody(attempt)
        for attempt in list(self._moves.values()):
            self._check_move(attempt, now)

    def _no_answer(self, attempt: Attempt, now: float) -> None:
        text = f"no answer within {self._settings.probe_timeout} s"
        for tag in list(attempt.asked):
            producer, sent_ns = self._unask(attempt, tag)
            producer.failed(now, text)
            self._telling.probe_failed(attempt, producer, sent_ns, c.ERROR_TYPE_TIMEOUT, text)
        self._nobody(attempt)

    def _check_move(self, attempt: Attempt, now: float) -> None:
        transfer, source = attempt.transfer, attempt.source
        if transfer is None or source is None:  # it ended in this turn
            return
        idle = now - transfer.progress
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
        elif idle >= self._settings.idle_timeout:
            # Not only this item: what else it sends would be as late, and what is queued to it must go.
            self._lost(source, f"nothing came for {idle:.1f} s", c.ERROR_TYPE_TIMEOUT)
        elif attempt.deadline <= now:
            text = f"not whole after {self._settings.transfer_timeout} s"
            self._broken(attempt, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, text, now)

    def _lost(self, producer: Producer, why: str, error_type: int) -> None:
        """Drop the connection; what waited for it fails."""
        now = time.monotonic()
        producer.failed(now, why)
        self._producers.disconnect(producer)
        mode = c.FAILURE_MODE_TIMEOUT if error_type == c.ERROR_TYPE_TIMEOUT else c.FAILURE_MODE_TRANSFER
        for attempt in [each for each in self._moves.values() if each.source is producer]:
            self._broken(attempt, mode, error_type, why, now)
        for tag, attempt in list(self._probes.items()):
            if tag in attempt.asked and attempt.asked[tag][0] is producer:
                _, sent_ns = self._unask(attempt, tag)
                self._telling.probe_failed(attempt, producer, sent_ns, error_type, why)
                self._asked(attempt)
        for serial, attempt in list(self._waiting.items()):
            if attempt.source is producer:
                self._waits_no_longer(serial)
                attempt.source = attempt.content = None
                if self._items.again(attempt.wanted, None):
                    self._probe(attempt, now)
