"""A consumer's socket to one producer. Only on the fetcher's thread."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import zmq
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import AreaName
from penstock.instrumentation.vllm.zmq_ec.wire import curve, protocol, sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ClientKeys

_QUEUE: Final = 512
_RECEIVE_QUEUE: Final = 64
_BATCH: Final = 32
_CONNECT_TIMEOUT: Final = 2_000
_FRAMES: Final = 2

_WATCHED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ConnectionEnd(enum.Enum):
    """Why a connection has ended, as a sentence for the log and the event."""

    REFUSED = "the connection was refused"
    INCOMPATIBLE = "the peer's ZeroMQ handshake is not one of an encoder"
    CLOSED = (
        "the connection was closed before the peer answered: a proxy without its encoder, no encoder at all, or one "
        "that requires CURVE (its log says so)"
    )
    RESET = "the connection was closed"
    DENIED = (
        "the producer refused this consumer's CURVE key: its curve_allowed_clients must have the .key file of this "
        "consumer's curve_key_file"
    )
    NO_CURVE_HERE = "the producer requires CURVE and this consumer has no keys: set curve_key_file and curve_server_key_file"
    NO_CURVE_THERE = "this consumer requires CURVE and the producer has no keys: set curve_key_file and curve_allowed_clients there"
    CLOSED_IN_CURVE = (
        "the connection was closed in the CURVE handshake: a proxy without its encoder, or a producer that has no CURVE "
        "or another key than curve_server_key_file (its log says which)"
    )

    @property
    def error_type(self) -> int:
        """``ERROR_TYPE_*`` of what was on its way."""
        return _ERROR_TYPES[self]


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


class ProducerConnection:
    """One connection. It never reconnects by itself.

    Attributes:
        socket: to be polled, with *monitor*.
        area: the producer's memory, where both are on one host; None while it is not known, or not to be used.
        fingerprints: whether the producer is known to have them.

    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ClientKeys | None = None
    ) -> None:
        """Begin to connect to *address* (``host:port``), with *keys* by CURVE.

        Raises:
            ValueError: it is no address.
            zmq.ZMQError: the process has no descriptors left.

        """
        self.malformed = 0
        self.socket = context.socket(zmq.DEALER)
        for option, value in {
            zmq.LINGER: 0,
            zmq.IPV6: 1,
            zmq.SNDHWM: _QUEUE,
            zmq.RCVHWM: _RECEIVE_QUEUE,
            zmq.MAXMSGSIZE: protocol.CHUNK_MAX + (0 if keys is None else curve.OVERHEAD),
            zmq.RECONNECT_IVL: -1,
            zmq.CONNECT_TIMEOUT: _CONNECT_TIMEOUT,
            **sockets.KEEPALIVE,
        }.items():
            self.socket.setsockopt(option, value)
        if keys is not None:
            keys.apply(self.socket)
        self._curve = keys is not None
        self.area: AreaReader | None = None
        self.fingerprints = False
        self._attached = False
        self._up = False
        try:
            self.monitor = self.socket.get_monitor_socket(_WATCHED)
        except zmq.ZMQError:  # no descriptors are left
            self.socket.close(linger=0)
            raise
        try:
            self.socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"{address!r} is not an address to connect to: {error.strerror}") from error

    def send(self, message: protocol.Request) -> bool:
        """Queue a request; return False if the queue is full or the connection has ended."""
        try:
            self.socket.send(protocol.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def attach(self, answer: protocol.Area) -> None:
        """Open the producer's memory, from which its items are then copied. A second answer on a connection changes nothing.

        Raises:
            AreaError: it cannot be opened.

        """
        if not self._attached:
            self._attached = True
            self.area = AreaReader(AreaName(answer.pid, answer.fd, answer.capacity, answer.token))

    def detach(self) -> None:
        """Use the producer's memory no more; its items then come in messages."""
        if self.area is not None:
            self.area.close()
            self.area = None

    def receive(self) -> Iterator[tuple[protocol.Answer, Any]]:
        """Yield the answers that have arrived, a chunk with its bytes; malformed ones, and fingerprints that were not asked for, are dropped and counted."""
        for _ in range(_BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                return
            try:
                answer = protocol.decode_answer(frames[0].bytes)
            except protocol.WireError:
                self.malformed += 1
                continue
            if len(frames) != (_FRAMES if isinstance(answer, protocol.Chunk) else 1) or self._is_unasked(
                answer
            ):
                self.malformed += 1
                continue
            yield answer, frames[1].buffer if len(frames) == _FRAMES else None

    def check_end(self) -> ConnectionEnd | None:
        """Return why the connection has ended, None while it stands."""
        for event, value in sockets.drain_events(self.monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._up = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return ConnectionEnd.DENIED
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                if value != zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                    return ConnectionEnd.INCOMPATIBLE
                return ConnectionEnd.NO_CURVE_THERE if self._curve else ConnectionEnd.NO_CURVE_HERE
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                return ConnectionEnd.CLOSED_IN_CURVE if self._curve else ConnectionEnd.CLOSED
            elif event != zmq.EVENT_CONNECTED:
                return ConnectionEnd.RESET if self._up else ConnectionEnd.REFUSED
        return None

    def _is_unasked(self, answer: protocol.Answer) -> bool:
        """Whether it names an item by a fingerprint, which this process may not be able to compute."""
        return (
            isinstance(answer, protocol.Have) and bool(answer.content.fingerprint) and not self.fingerprints
        )

    def close(self) -> None:
        """Close the connection and drop its queue. Idempotent."""
        self.detach()
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
            self.socket.close(linger=0)
