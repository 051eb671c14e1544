"""The transfers of a fetcher: found items that wait for room, and those on their way. On the fetcher's thread."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import SLOW
from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import AreaCopy, ItemGoneError, begin_copy
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import REFUSALS
from penstock.instrumentation.vllm.zmq_ec.consumer.probes import report_missing
from penstock.instrumentation.vllm.zmq_ec.consumer.transfer import Transfer, TransferError
from penstock.instrumentation.vllm.zmq_ec.wire import protocol
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
    from penstock.instrumentation.vllm.zmq_ec.consumer.items import Items
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer
    from penstock.instrumentation.vllm.zmq_ec.consumer.rehearsal import Rehearsal
    from penstock.instrumentation.vllm.zmq_ec.consumer.reporting import Reporter
    from penstock.instrumentation.vllm.zmq_ec.memory import Slot
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SharedRegion
    from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings

logger = logging.getLogger("vllm.penstock.zmq_ec")

_MOVING_MAX: Final = 4

_PIECES_A_TURN: Final = 8
"""Pieces of an item that are copied before the fetcher looks at its connections and at other items again."""

_ASK_AFTER: Final = 0.1
"""Seconds for which a copy stands still before it asks for its fingerprints: a producer computes what it is asked for."""


class Transfers:
    """Attempts that have a source. A failed transfer is retried while retries are left."""

    def __init__(
        self,
        items: Items,
        region: SharedRegion,
        settings: ConsumerSettings,
        model: bytes,
        reporter: Reporter,
        rehearsal: Rehearsal,
        tags: Iterator[int],
        *,
        retry: Callable[[Attempt, float], None],
        lose: Callable[[Producer, str, int], None],
    ) -> None:
        """Start with none.

        Args:
            items: where results are reported.
            region: where content is written.
            settings: time limits and retries.
            model: digest of the model.
            reporter: of transfers and failures.
            rehearsal: the fault drills.
            tags: of all messages of the fetcher.
            retry: probes for an item again, at that monotonic time.
            lose: drops the connection to a producer, for a reason and an error type.

        """
        self._items = items
        self._region = region
        self._settings = settings
        self._model = model
        self._reporter = reporter
        self._rehearsal = rehearsal
        self._tags = tags
        self._retry = retry
        self._lose = lose
        self._waiting: dict[int, Attempt] = {}
        self._moving: dict[int, Attempt] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._moving)

    def add(self, attempt: Attempt, now: float) -> None:
        """Take an attempt whose source has just been found."""
        source = attempt.source
        if source is None:
            return
        attempt.deadline = now + self._settings.start_timeout
        self._items.set_peer(attempt.wanted, source.peer)
        self._waiting[attempt.wanted.serial] = attempt
        source.waited_for += 1

    def start(self, now: float) -> None:
        """Start transfers in the order of their hits; one that needs room is not overtaken."""
        for serial, attempt in list(self._waiting.items()):
            if serial not in self._waiting:  # its producer has been lost since
                continue
            source, content = attempt.source, attempt.content
            if source is None or content is None or not self._items.is_wanted(attempt.wanted):
                self._stop_waiting(serial)
                continue
            if source.moving >= _MOVING_MAX:
                continue
            area = None if source.connection is None else source.connection.area
            copy = begin_copy(area, attempt.wanted.item, content, now)
            if copy is None and attempt.in_memory:
                self._probe_again(serial, attempt, now)
                continue
            slot = self._items.allocate(attempt.wanted, content, source.peer)
            if slot is None:
                break
            self._stop_waiting(serial)
            self._region.begin(slot.start)
            attempt.slot, attempt.tag = slot, next(self._tags)
            attempt.transfer = copy or Transfer(content, now)
            attempt.began_ns = time.time_ns()
            attempt.deadline = now + self._settings.transfer_timeout
            self._rehearse(attempt, source, now)
            self._moving[attempt.tag] = attempt
            source.busy += 1
            source.moving += 1
            self._request_chunks(attempt, now)

    def advance(self, now: float) -> bool | None:
        """Copy some pieces of each item that comes out of a producer's memory; return whether one moved, None if there is none."""
        moved = None
        for attempt in list(self._moving.values()):
            copy = attempt.transfer
            if isinstance(copy, AreaCopy) and not copy.done:
                moved = self._advance(attempt, copy, now) or bool(moved)
        return moved

    def on_answer(self, producer: Producer, answer: protocol.Answer, payload: Any, now: float) -> None:
        """Take the answer to a request for a chunk; a late one is dropped."""
        attempt = self._moving.get(answer.tag)
        if attempt is None or attempt.source is not producer:
            return
        match answer:
            case protocol.Chunk():
                self._on_chunk(attempt, answer, payload, now)
            case protocol.Miss():
                self._on_failed(
                    attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, "the producer evicted it", now
                )
            case protocol.Refused():
                error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
                self._on_failed(attempt, c.FAILURE_MODE_TRANSFER, error_type, answer.text, now)

    def fail(self, producer: Producer, why: str, error_type: int, now: float) -> None:
        """Fail what is on its way from *producer*, whose connection is lost."""
        mode = c.FAILURE_MODE_TIMEOUT if error_type == c.ERROR_TYPE_TIMEOUT else c.FAILURE_MODE_TRANSFER
        for attempt in [each for each in self._moving.values() if each.source is producer]:
            self._on_failed(attempt, mode, error_type, why, now)

    def probe_again(self, producer: Producer, now: float) -> None:
        """Find another source for what waits for room and was to come from *producer*."""
        for serial, attempt in list(self._waiting.items()):
            if attempt.source is producer:
                self._probe_again(serial, attempt, now)

    def _probe_again(self, serial: int, attempt: Attempt, now: float) -> None:
        self._stop_waiting(serial)
        attempt.source = attempt.content = None
        if self._items.on_retry(attempt.wanted, None):
            self._retry(attempt, now)

    def expire(self, now: float) -> None:
        """Give up waits for room and transfers that are over their deadline."""
        for serial, attempt in list(self._waiting.items()):
            if attempt.deadline <= now:
                self._stop_waiting(serial)
                logger.warning("ZmqECConnector: no room for item %s (region_bytes)", attempt.wanted.item)
                report_missing(self._items, attempt)
        for attempt in list(self._moving.values()):
            self._check(attempt, now)

    def _stop_waiting(self, serial: int) -> None:
        source = self._waiting.pop(serial).source
        if source is not None:
            source.waited_for -= 1

    def _request_chunks(self, attempt: Attempt, now: float) -> None:
        source, transfer = attempt.source, attempt.transfer
        if source is None or not isinstance(transfer, Transfer):
            return
        for offset, length in transfer.requests():
            fetch = protocol.Fetch(
                attempt.tag, self._model, transfer.content.crc, offset, length, attempt.wanted.item
            )
            connection = source.connection
            if connection is not None and connection.send(fetch):
                continue
            end = connection.check_end() if connection is not None else None
            if end is not None:
                self._lose(source, end.value, end.error_type)
            else:
                text = "it cannot be asked for chunks"
                self._on_failed(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, text, now)
            return

    def _on_chunk(self, attempt: Attempt, answer: protocol.Chunk, payload: Any, now: float) -> None:
        transfer, slot = attempt.transfer, attempt.slot
        if not isinstance(transfer, Transfer) or slot is None:
            return
        try:
            offset = transfer.accept(answer, payload, now)
        except TransferError as error:
            self._on_failed(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, str(error), now)
            return
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
            return
        self._region.write(slot.content + offset, payload)
        if not transfer.done:
            self._request_chunks(attempt, now)
        elif attempt.held_until <= now:
            self._complete(attempt, slot, now)

    def _advance(self, attempt: Attempt, copy: AreaCopy, now: float) -> bool:
        slot, source = attempt.slot, attempt.source
        if slot is None or source is None:
            return False
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
            return True
        try:
            moved = copy.advance(self._region.room(slot.content, slot.nbytes), now, _PIECES_A_TURN)
        except ItemGoneError as error:
            self._on_failed(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, str(error), now)
            return True
        except TransferError as error:
            if source.connection is not None:
                source.connection.detach()
            self._on_failed(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, str(error), now)
            return True
        if copy.done:
            source.on_copied()
            took = max(time.time_ns() - attempt.began_ns, 0)
            if attempt.held_until <= now:
                self._complete(attempt, slot, now)
            # Last, because the request waits for the rest.
            if source.connection is not None:
                source.connection.send(protocol.Taken(attempt.tag, self._model, took, attempt.wanted.item))
        return moved

    def _rehearse(self, attempt: Attempt, source: Producer, now: float) -> None:
        """Let a fault drill hit the transfer that begins: it fails once it is complete, or is held."""
        attempt.drill = drill = self._rehearsal.of_transfer(source.peer.address)
        attempt.held_until = now
        if drill is not None and drill.mode == SLOW:
            attempt.held_until = now + drill.delay_ns / NANOS
            self._items.set_rehearsed(attempt.wanted)

    def _complete(self, attempt: Attempt, slot: Slot, now: float) -> None:
        drill = attempt.drill
        if drill is not None and drill.mode != SLOW:
            text = f"drill {drill.id}"
            self._on_failed(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, text, now, rehearsal=True)
            return
        transfer = attempt.transfer
        if transfer is None:
            return
        self._region.seal(slot.start, slot.generation, slot.nbytes)
        self._end(attempt)
        self._reporter.transfer(attempt, ok=True)
        self._items.on_arrived(attempt.wanted, slot, transfer.checksum)

    def _on_failed(
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
            self._items.on_failed(attempt.failure, attempt.wanted, slot)
            return
        attempt.retries += 1
        if self._items.on_retry(attempt.wanted, slot):
            self._retry(attempt, now)

    def _abandon(self, attempt: Attempt) -> None:
        """End a transfer that the scheduler has given up; it has reported why."""
        self._reporter.transfer(attempt, ok=False)
        self._end(attempt)
        self._items.on_retry(attempt.wanted, attempt.slot)

    def _end(self, attempt: Attempt) -> None:
        self._moving.pop(attempt.tag, None)
        attempt.transfer = None
        if attempt.source is not None:
            attempt.source.busy -= 1
            attempt.source.moving -= 1

    def _check(self, attempt: Attempt, now: float) -> None:
        transfer, source, slot = attempt.transfer, attempt.source, attempt.slot
        if transfer is None or source is None or slot is None:  # it ended in this turn
            return
        idle = 0.0 if transfer.done else now - transfer.progress
        if not self._items.is_wanted(attempt.wanted):
            self._abandon(attempt)
        elif transfer.done and attempt.held_until <= now:
            self._complete(attempt, slot, now)
        elif self._may_ask(transfer, idle):
            self._ask(attempt, source)
        elif idle >= self._settings.idle_timeout:
            self._on_idle(attempt, source, f"nothing came for {idle:.1f} s", now)
        elif attempt.deadline <= now:
            text = f"not whole after {self._settings.transfer_timeout} s"
            self._on_failed(
                attempt,
                c.FAILURE_MODE_TIMEOUT,
                c.ERROR_TYPE_TIMEOUT,
                text,
                now,
                rehearsal=transfer.done,  # complete, and held by a drill
            )

    def _may_ask(self, transfer: Transfer | AreaCopy, idle: float) -> bool:
        longest = min(_ASK_AFTER, self._settings.idle_timeout)
        return isinstance(transfer, AreaCopy) and not transfer.asked and idle >= longest

    def _ask(self, attempt: Attempt, source: Producer) -> None:
        """Ask for the item of a copy by message; its answer moves nothing, the fingerprints that it makes do."""
        if isinstance(attempt.transfer, AreaCopy) and source.connection is not None:
            attempt.transfer.asked = True
            look = protocol.Probe(attempt.tag, self._model, attempt.wanted.item, fingerprint=True)
            source.connection.send(look)

    def _on_idle(self, attempt: Attempt, source: Producer, text: str, now: float) -> None:
        if isinstance(attempt.transfer, AreaCopy):  # what is whole in the memory can be copied all the same
            self._on_failed(attempt, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, text, now)
        else:
            # Not only this item: what else it sends would be as late, and what is queued to it must go.
            self._lose(source, text, c.ERROR_TYPE_TIMEOUT)
