"""The producers that a consumer knows, their connections and back-off. Only on the fetcher's thread."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import zmq
from penstock.instrumentation.core import LogLimit
from penstock.instrumentation.transport import Backoff
from penstock.instrumentation.vllm.naming import Peer
from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ProducerConnection
from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaError
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import this_place
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ClientKeys

logger = logging.getLogger("vllm.penstock.zmq_ec")

NAMED_MAX: Final = 64
"""Bound on the remembered producers that requests have named: clients choose them."""

_LOG_INTERVAL: Final = 60.0


class Producer:
    """One producer.

    Attributes:
        busy: probes and transfers without an end yet.
        waited_for: items that it has and that wait for room.
        moving: transfers.
        connection: None while there is none.

    """

    def __init__(self, address: str) -> None:
        self.peer = Peer(address)
        self.connection: ProducerConnection | None = None
        self.busy = 0
        self.waited_for = 0
        self.moving = 0
        self.ask_after = 0.0
        self._backoff = Backoff()
        self._failing = False
        self._copied = False  # out of its memory, since its last failure

    @property
    def area(self) -> AreaReader | None:
        """Its memory, if it is on this host and has not failed since its last answer. From any thread."""
        connection = self.connection
        return None if self._failing or connection is None else connection.area

    def on_answer(self) -> None:
        """Reset the back-off after an answer."""
        if self._failing:
            self._failing = False
            self.ask_after = 0.0
            self._backoff.reset()
            logger.info("ZmqECConnector: producer %s answers again", self.peer.address)

    def on_copied(self) -> None:
        """Ask for several items at a time again. Its back-off stays: a producer that hangs has its memory, and answers nothing."""
        self._copied = True

    def on_failure(self, now: float, why: str) -> None:
        """Back off after a missing answer or a lost connection, longer each time."""
        if not self._failing:
            self._failing = True
            logger.warning("ZmqECConnector: producer %s: %s", self.peer.address, why)
        self._copied = False
        if self.ask_after <= now:
            self.ask_after = now + self._backoff.next()

    def may_ask(self, now: float) -> bool:
        """Whether to ask it now. After a failure, one request at a time until it answers, or gives an item."""
        if self.ask_after > now:
            return False
        return not self._failing or self._copied or not self.busy


class Producers:
    """The configured producers, and the last :data:`NAMED_MAX` that requests named.

    Attributes:
        connected: addresses of those that have answered on a connection that stands; replaced, never changed.

    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: tuple[str, ...],
        keys: ClientKeys | None = None,
        attach: protocol.Attach | None = None,
    ) -> None:
        """Connect to none yet; *attach* asks each for its memory and for fingerprints, None to get along without them."""
        self._context = context
        self._keys = keys
        self._attach = attach
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL
        self._configured = [Producer(address) for address in addresses]
        self._named: OrderedDict[str, Producer] = OrderedDict()
        self._by_socket: dict[object, Producer] = {}
        self.poller = zmq.Poller()
        self.connected: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Producer]:
        yield from self._configured
        yield from self._named.values()

    def available(
        self, named: tuple[str, ...], now: float, admitted: frozenset[str] | None = None
    ) -> list[Producer]:
        """Return the producers to ask for an item whose request names those addresses: connected, and not backing off.

        Only those in *admitted*, if that is not None.
        """
        if admitted is not None:
            named = tuple(address for address in named if address in admitted)
        found = [each for address in named if (each := self._get_or_add(address)) is not None]
        found += [
            each
            for each in self._configured
            if each not in found and (admitted is None or each.peer.address in admitted)
        ]
        return [each for each in found if each.may_ask(now) and self._ensure_connected(each, now)]

    def near(self, named: tuple[str, ...], admitted: frozenset[str] | None = None) -> list[Producer]:
        """Return those of :meth:`available` whose memory is on this host, as they are; from any thread."""
        found = [each for address in named if (each := self._named.get(address)) is not None]
        found += [each for each in self._configured if each not in found]
        return [
            each
            for each in found
            if each.area is not None and (admitted is None or each.peer.address in admitted)
        ]

    def on_answer(self, producer: Producer) -> None:
        """Record an answer of *producer*."""
        producer.on_answer()
        if producer.peer.address not in self.connected:
            self.connected |= {producer.peer.address}

    def on_attached(self, producer: Producer, answer: protocol.Answer) -> None:
        """Use the fingerprints of *producer*, and its memory if it says where that is; one of an earlier version refuses."""
        connection = producer.connection
        if self._attach is None or connection is None or isinstance(answer, protocol.Refused):
            return
        connection.fingerprints = True
        if not isinstance(answer, protocol.Area) or self._attach.place != this_place():
            return
        try:
            connection.attach(answer)
        except AreaError as error:
            if self._log.admit(error.why) is not None:
                logger.info(
                    "ZmqECConnector: items of producer %s are copied over the network: %s",
                    producer.peer.address,
                    error,
                )

    def find(self, socket: object) -> Producer | None:
        """Return the producer of a polled socket."""
        return self._by_socket.get(socket)

    def disconnect(self, producer: Producer) -> None:
        """Close its connection and drop its queue."""
        connection = producer.connection
        if connection is not None:
            producer.connection = None
            self.connected -= {producer.peer.address}
            for socket in (connection.socket, connection.monitor):
                self._by_socket.pop(socket, None)
                self.poller.unregister(socket)
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for producer in self:
            self.disconnect(producer)

    def _ensure_connected(self, producer: Producer, now: float) -> bool:
        if producer.connection is not None:
            return True
        try:
            connection = ProducerConnection(self._context, producer.peer.address, self._keys)
        except (ValueError, zmq.ZMQError) as error:
            producer.on_failure(now, str(error))
            return False
        producer.connection = connection
        if self._attach is not None:
            connection.send(self._attach)
        for socket in (connection.socket, connection.monitor):
            self._by_socket[socket] = producer
            self.poller.register(socket, zmq.POLLIN)
        return True

    def _get_or_add(self, address: str) -> Producer | None:
        """Return the producer of that address; None if all remembered ones are in use."""
        for each in self._configured:
            if each.peer.address == address:
                return each
        producer = self._named.get(address)
        if producer is None:
            if len(self._named) >= NAMED_MAX and not self._evict_idle():
                return None
            producer = self._named[address] = Producer(address)
        self._named.move_to_end(address)
        return producer

    def _evict_idle(self) -> bool:
        """Forget the least recently named producer that is idle; return whether there was one."""
        for address, each in self._named.items():
            if not each.busy and not each.waited_for:
                self.disconnect(self._named.pop(address))
                return True
        return False
