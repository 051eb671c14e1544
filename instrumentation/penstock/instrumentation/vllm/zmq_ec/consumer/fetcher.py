"""Fetches items on a thread of a consumer's scheduler process. The thread owns all sockets; the scheduler never waits for it.

What it has to get are ``fetch_orders.py``; the scheduler gives an item up in ``items.py``.
"""

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
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
from penstock.instrumentation.vllm.zmq_ec.consumer.early_copies import EarlyCopies
from penstock.instrumentation.vllm.zmq_ec.consumer.probes import Probes, WaitingAttempts
from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producers
from penstock.instrumentation.vllm.zmq_ec.consumer.running_transfers import RunningTransfers
from penstock.instrumentation.vllm.zmq_ec.consumer.transfer_driver import TransferDriver
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import this_place
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Expected
    from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer
    from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Rehearsal, Reporter
    from penstock.instrumentation.vllm.zmq_ec.memory import Slots
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SharedRegion
    from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ClientKeys

logger = logging.getLogger("vllm.penstock.zmq_ec")

_TICK: Final = 0.01
_ATTACH_TAG: Final = 0

_SPIN: Final = 0.002
"""Seconds for which a copy that has caught up with its producer's fingerprints looks again at once; then once a millisecond."""
_STOP_WAIT: Final = 5.0
_LOG_INTERVAL: Final = 60.0


class Fetcher:
    """Executes *orders*, writing to *region*, from construction to :meth:`stop`.

    Attributes:
        early: the copies that the scheduler's thread makes itself.

    """

    def __init__(
        self,
        orders: FetchOrders,
        slots: Slots,
        region: SharedRegion,
        settings: ConsumerSettings,
        expected: Expected,
        reporter: Reporter,
        rehearsal: Rehearsal,
        wake: int,
        keys: ClientKeys | None = None,
    ) -> None:
        """Start; *wake* is an eventfd, written to when there are new *orders*, *keys* are for CURVE."""
        self._orders = orders
        self._wake = wake
        self._next_scan = 0.0
        self._stopping = threading.Event()
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL
        self._context = zmq.Context()
        place = this_place() if settings.same_host else bytes(len(this_place()))
        attach = protocol.Attach(_ATTACH_TAG, expected.model, place) if fingerprints.available() else None
        self._producers = Producers(self._context, settings.producers, keys, attach)
        self._producers.poller.register(wake, zmq.POLLIN)
        tags = itertools.count(_ATTACH_TAG + 1)
        # Whether the last turn has copied out of a producer's memory; None if nothing is to be copied.
        self._copying: bool | None = None
        self._moved_at = 0.0
        self._probes = Probes(
            orders, slots, self._producers, expected, reporter, tags, settings.probe_timeout, rehearsal
        )
        self._waiting = WaitingAttempts(orders, settings.start_timeout, probe=self._probe)
        self._moving = RunningTransfers(
            orders, region, settings, reporter, rehearsal, tags, probe=self._probe
        )
        self._transfers = TransferDriver(
            orders,
            self._waiting,
            self._moving,
            region,
            settings,
            expected.model,
            lose=self._on_connection_lost,
        )
        self.early = EarlyCopies(
            orders, slots, self._producers, region, expected, reporter, rehearsal, self._transfers
        )
        self._thread = threading.Thread(target=self._run, name="penstock-ec-fetcher", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> frozenset[str]:
        """The producers that have answered on a connection that stands; from any thread."""
        return self._producers.connected

    @property
    def has_unreported(self) -> bool:
        """Whether it is to be woken, so that producers learn of early copies."""
        return self._transfers.has_unreported

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
        try:
            self._work()
        finally:  # a request never waits for longer than its limits
            now = time.monotonic()
            self._transfers.report(now)
            if now >= self._next_scan:
                self._next_scan = now + _TICK
                self._expire(now)

    def _work(self) -> None:
        for socket, _ in self._producers.poller.poll(self._patience()):
            if socket == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                continue
            producer = self._producers.find(socket)
            if producer is not None:
                self._read_answers(producer)
        now = time.monotonic()
        for wanted in self._orders.drain():
            self._probe(Attempt(wanted), now)
        self._transfers.start(now)
        moved = self._transfers.advance(now)
        if moved or self._copying is None:
            self._moved_at = now
        self._copying = moved

    def _expire(self, now: float) -> None:
        with contextlib.ExitStack() as all_of_them:  # also when one of them fails
            for each in (self._transfers, self._waiting, self._probes):
                all_of_them.callback(each.expire, now)

    def _patience(self) -> float | None:
        """Return the milliseconds for which to wait for an answer or an order; None for ever."""
        if self._copying is not None:
            return 0 if time.monotonic() - self._moved_at < _SPIN else 1
        if self._transfers.has_unreported:
            return 1
        return _TICK * 1000 if self._probes or self._waiting or self._moving else None

    def _probe(self, attempt: Attempt, now: float) -> None:
        found = self._probes.start(attempt, now)
        if found is not None:
            self._waiting.add(found, now)

    def _read_answers(self, producer: Producer) -> None:
        connection = producer.connection
        if connection is None:  # closed by an earlier event of this turn
            return
        for answer, payload in connection.receive():
            if answer.tag != _ATTACH_TAG:  # what it can do; not that it can answer for items again
                self._producers.on_answer(producer)
            self._on_answer(producer, answer, payload)
            if producer.connection is not connection:
                return
        end = connection.check_end()
        if end is not None:
            self._on_connection_lost(producer, end.value, end.error_type)

    def _on_answer(self, producer: Producer, answer: protocol.Answer, payload: Any) -> None:
        """Dispatch an answer to the attempt that expects it from *producer*; a late answer is dropped."""
        now = time.monotonic()
        if answer.tag == _ATTACH_TAG:
            self._producers.on_attached(producer, answer)
            return
        if not self._probes.expects(producer, answer.tag):
            self._transfers.on_answer(producer, answer, payload, now)
            return
        found = self._probes.on_answer(answer)
        if found is not None:
            self._waiting.add(found, now)

    def _on_connection_lost(self, producer: Producer, why: str, error_type: int) -> None:
        """Drop the connection; its transfers and probes fail, its waiting items are probed again."""
        now = time.monotonic()
        producer.on_failure(now, why)
        self._producers.disconnect(producer)
        self._moving.on_connection_lost(producer, why, error_type, now)
        self._probes.on_connection_lost(producer, why, error_type)
        self._waiting.on_connection_lost(producer, now)
