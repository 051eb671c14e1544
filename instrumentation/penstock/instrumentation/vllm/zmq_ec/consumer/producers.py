"""The producers that a consumer knows, and which of them to ask now. Only on the fetcher's thread."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import zmq
from penstock.instrumentation.transport import Backoff
from penstock.instrumentation.vllm.naming import Peer
from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ProducerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("vllm.penstock.zmq_ec")

NAMED_MAX: Final = 64
"""Producers that requests have named and that are remembered: clients choose them."""


class Producer:
    """One producer.

    Attributes:
        busy: probes and transfers that wait for it.
        waited_for: items that it has and that wait for room.
        moving: transfers.
        link: the connection, if there is one.

    """

    def __init__(self, address: str) -> None:
        self.peer = Peer(address)
        self.link: ProducerConnection | None = None
        self.busy = 0
        self.waited_for = 0
        self.moving = 0
        self.ask_after = 0.0
        self._backoff = Backoff()
        self._failing = False

    def alive(self) -> None:
        """Note that it has answered."""
        if self._failing:
            self._failing = False
            self.ask_after = 0.0
            self._backoff.reset()
            logger.info("ZmqECConnector: producer %s answers again", self.peer.address)

    def failed(self, now: float, why: str) -> None:
        """Note that it has not answered, or broke off: it is asked again after a while, longer each time."""
        if not self._failing:
            self._failing = True
            logger.warning("ZmqECConnector: producer %s: %s", self.peer.address, why)
        if self.ask_after <= now:
            self.ask_after = now + self._backoff.next()

    def may_ask(self, now: float) -> bool:
        """Whether to ask it now. After a failure one question at a time finds out whether it is back."""
        if self.ask_after > now:
            return False
        return not self._failing or not self.busy


class Producers:
    """Those of the configuration, for good, and the last few that requests named."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], addresses: tuple[str, ...]) -> None:
        self._context = context
        self._configured = [Producer(address) for address in addresses]
        self._named: OrderedDict[str, Producer] = OrderedDict()
        self._by_socket: dict[object, Producer] = {}  # and by the descriptor that tells of arrivals
        self.poller = zmq.Poller()

    def __iter__(self) -> Iterator[Producer]:
        yield from self._configured
        yield from self._named.values()

    def to_ask(self, named: tuple[str, ...], now: float) -> list[Producer]:
        """Return whom to ask for an item whose request names those addresses: connected, and not known to be down."""
        found = [each for address in named if (each := self._remember(address)) is not None]
        found += [each for each in self._configured if each not in found]
        return [each for each in found if each.may_ask(now) and self._connected(each, now)]

    def of(self, socket: object) -> Producer | None:
        """Return the producer of what was polled."""
        return self._by_socket.get(socket)

    def wanting_look(self) -> list[Producer]:
        """Return those whose connections are to be looked at again soon."""
        return [each for each in self if each.link is not None and each.link.undelivered.wants_look]

    def disconnect(self, producer: Producer) -> None:
        """Close its connection, and drop what is queued on it."""
        link = producer.link
        if link is not None:
            producer.link = None
            for socket in _polled(link):
                self._by_socket.pop(socket, None)
                self.poller.unregister(socket)
            link.close()

    def close(self) -> None:
        """Close all connections."""
        for producer in self:
            self.disconnect(producer)

    def _connected(self, producer: Producer, now: float) -> bool:
        if producer.link is not None:
            return True
        try:
            link = ProducerConnection(self._context, producer.peer.address)
        except (ValueError, zmq.ZMQError) as error:
            producer.failed(now, str(error))
            return False
        producer.link = link
        for socket in _polled(link):
            self._by_socket[socket] = producer
            self.poller.register(socket, zmq.POLLIN)
        return True

    def _remember(self, address: str) -> Producer | None:
        """Return the producer of that address; None if there is no room to know one more."""
        for each in self._configured:
            if each.peer.address == address:
                return each
        producer = self._named.get(address)
        if producer is None:
            if len(self._named) >= NAMED_MAX and not self._forget_one():
                return None
            producer = self._named[address] = Producer(address)
        self._named.move_to_end(address)
        return producer

    def _forget_one(self) -> bool:
        """Forget the producer that was named the longest ago of those that nobody waits for; tell whether there was one."""
        for address, each in self._named.items():
            if not each.busy and not each.waited_for:
                self.disconnect(self._named.pop(address))
                return True
        return False


def _polled(link: ProducerConnection) -> tuple[zmq.Socket[bytes] | int, ...]:
    return link.socket, link.monitor, link.undelivered.fileno()
