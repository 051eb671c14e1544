"""Starts the transfers of a fetcher and drives them, within their time limits; how they end: ``running_transfers.py``. On the fetcher's thread."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import (
    AreaCopy,
    ItemGoneError,
    begin_copy,
    find_same,
)
from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import REFUSALS
from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import ChunkedTransfer, TransferError
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
    from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ProducerConnection
    from penstock.instrumentation.vllm.zmq_ec.consumer.fetch_orders import FetchOrders
    from penstock.instrumentation.vllm.zmq_ec.consumer.probes import WaitingAttempts
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer
    from penstock.instrumentation.vllm.zmq_ec.consumer.running_transfers import RunningTransfers
    from penstock.instrumentation.vllm.zmq_ec.memory.shared_region import SharedRegion
    from penstock.instrumentation.vllm.zmq_ec.settings import ConsumerSettings

_MOVING_MAX: Final = 4

_PIECES_A_TURN: Final = 8
"""Pieces of an item that are copied before the fetcher looks at its connections and at other items again."""

_REPORT_AFTER: Final = 0.001
"""Seconds after which a producer learns of a copy: not while the request goes on, for both need the interpreter."""

_UNREPORTED_MAX: Final = 1_024

_ASK_AFTER: Final = 0.1
"""Seconds for which a copy stands still before it asks for its fingerprints: a producer computes what it is asked for."""


class TransferDriver:
    """Moves the content of items: asks for chunks and writes them, and copies out of the memory of producers on this host."""

    def __init__(
        self,
        orders: FetchOrders,
        waiting: WaitingAttempts,
        moving: RunningTransfers,
        region: SharedRegion,
        settings: ConsumerSettings,
        model: bytes,
        *,
        lose: Callable[[Producer, str, int], None],
    ) -> None:
        """Start with none.

        Args:
            orders: which are wanted, and where there is room.
            waiting: what is to be started.
            moving: what has been started.
            region: where content is written.
            settings: time limits.
            model: digest of the model.
            lose: drops the connection to a producer, for a reason and an error type.

        """
        self._orders = orders
        self._waiting = waiting
        self._moving = moving
        self._region = region
        self._settings = settings
        self._model = model
        self._lose = lose
        # What the producers do not know yet: since when, on which connection, and the message.
        self._unreported: deque[tuple[float, ProducerConnection, protocol.Taken]] = deque(
            maxlen=_UNREPORTED_MAX
        )

    @property
    def has_unreported(self) -> bool:
        """Whether :meth:`report` is to be called in a millisecond. From any thread."""
        return bool(self._unreported)

    def start(self, now: float) -> None:
        """Start transfers in the order of their hits; one that needs room is not overtaken."""
        for attempt in self._waiting:
            source, content = attempt.source, attempt.content
            if source is None or content is None or source.moving >= _MOVING_MAX:
                continue
            area = None if source.connection is None else source.connection.area
            # An item that waited may have been evicted and put again, and one found by message may be in the memory as well.
            copy = begin_copy(area, attempt.found, now) or begin_copy(
                area, find_same(area, attempt.wanted.item, content), now
            )
            if copy is None and attempt.found is not None:
                self._waiting.probe_again(attempt, now)
                continue
            slot = self._orders.allocate(attempt.wanted, content, source.peer)
            if slot is None:
                break
            self._waiting.remove(attempt)
            self._moving.add(attempt, source, copy or ChunkedTransfer(content, now), slot, now)
            self._request_chunks(attempt, now)

    def advance(self, now: float) -> bool | None:
        """Copy some pieces of each item that comes out of a producer's memory; return whether one moved, None if there is nothing more to do at once."""
        moved = left = False
        for attempt in self._moving:
            copy = attempt.transfer
            if isinstance(copy, AreaCopy) and not copy.done:
                moved = self._advance(attempt, copy, now) or moved
                left = left or (not copy.done and attempt.transfer is copy)
        return moved if left or (moved and self._waiting) else None

    def add_copied(self, attempt: Attempt) -> None:
        """Note that an item has just been copied out of its source's memory. From any thread."""
        source = attempt.source
        connection = None if source is None else source.connection
        if connection is not None:
            took = max(time.time_ns() - attempt.began_ns, 0)
            taken = protocol.Taken(attempt.tag, self._model, took, attempt.wanted.item)
            self._unreported.append((time.monotonic(), connection, taken))

    def report(self, now: float) -> None:
        """Let producers know of what has been copied out of their memory a while ago."""
        while self._unreported and self._unreported[0][0] <= now - _REPORT_AFTER:
            _, connection, taken = self._unreported.popleft()
            connection.send(taken)

    def on_answer(self, producer: Producer, answer: protocol.Answer, payload: Any, now: float) -> None:
        """Take the answer to a request for a chunk; a late one is dropped."""
        attempt = self._moving.get(answer.tag)
        if attempt is None or attempt.source is not producer:
            return
        match answer:
            case protocol.Chunk():
                self._on_chunk(attempt, answer, payload, now)
            case protocol.Miss():
                self._moving.fail(
                    attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, "the producer evicted it", now
                )
            case protocol.Refused():
                error_type = REFUSALS.get(answer.reason, c.ERROR_TYPE_OTHER)
                self._moving.fail(attempt, c.FAILURE_MODE_TRANSFER, error_type, answer.text, now)

    def expire(self, now: float) -> None:
        """End transfers that stand still, or are over their deadline."""
        for attempt in self._moving:
            self._check(attempt, now)

    def _request_chunks(self, attempt: Attempt, now: float) -> None:
        source, transfer = attempt.source, attempt.transfer
        if source is None or not isinstance(transfer, ChunkedTransfer):
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
                self._moving.fail(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, text, now)
            return

    def _on_chunk(self, attempt: Attempt, answer: protocol.Chunk, payload: Any, now: float) -> None:
        transfer, slot = attempt.transfer, attempt.slot
        if not isinstance(transfer, ChunkedTransfer) or slot is None:
            return
        try:
            offset = transfer.accept(answer, payload, now)
        except TransferError as error:
            self._moving.fail(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, str(error), now)
            return
        if not self._orders.is_wanted(attempt.wanted):
            self._moving.abandon(attempt)
            return
        self._region.write(slot.content + offset, payload)
        if not transfer.done:
            self._request_chunks(attempt, now)
        elif attempt.held_until <= now:
            self._moving.complete(attempt, slot, now)

    def _advance(self, attempt: Attempt, copy: AreaCopy, now: float) -> bool:
        slot, source = attempt.slot, attempt.source
        if slot is None or source is None:
            return False
        if not self._orders.is_wanted(attempt.wanted):
            self._moving.abandon(attempt)
            return True
        try:
            moved = copy.advance(self._region.room(slot.content, slot.nbytes), now, _PIECES_A_TURN)
        except ItemGoneError as error:
            self._moving.fail(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, str(error), now)
            return True
        except TransferError as error:
            if source.connection is not None:
                source.connection.detach()
            self._moving.fail(attempt, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, str(error), now)
            return True
        if copy.done:
            source.on_copied()
            if attempt.held_until <= now:
                self._moving.complete(attempt, slot, now)
            self.add_copied(attempt)
        return moved

    def _check(self, attempt: Attempt, now: float) -> None:
        transfer, source, slot = attempt.transfer, attempt.source, attempt.slot
        if transfer is None or source is None or slot is None:  # it ended in this turn
            return
        idle = 0.0 if transfer.done else now - transfer.progress
        if not self._orders.is_wanted(attempt.wanted):
            self._moving.abandon(attempt)
        elif transfer.done and attempt.held_until <= now:
            self._moving.complete(attempt, slot, now)
        elif self._may_ask(transfer, idle):
            self._ask(attempt, source)
        elif idle >= self._settings.idle_timeout:
            self._on_idle(attempt, source, f"nothing came for {idle:.1f} s", now)
        elif attempt.deadline <= now:
            text = f"not whole after {self._settings.transfer_timeout} s"
            self._moving.fail(
                attempt,
                c.FAILURE_MODE_TIMEOUT,
                c.ERROR_TYPE_TIMEOUT,
                text,
                now,
                rehearsal=transfer.done,  # complete, and held by a drill
            )

    def _may_ask(self, transfer: ChunkedTransfer | AreaCopy, idle: float) -> bool:
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
            self._moving.fail(attempt, c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, text, now)
        else:
            # Not only this item: what else it sends would be as late, and what is queued to it must go.
            self._lose(source, text, c.ERROR_TYPE_TIMEOUT)
