"""A consumer's socket to one producer. Only on the fetcher's thread."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import zmq
from penstock.instrumentation.vllm.zmq_ec.wire import keepalive, protocol
from penstock.instrumentation.vllm.zmq_ec.wire.message_bound import Undelivered

if TYPE_CHECKING:
    import socket as sockets
    from collections.abc import Iterator

_QUEUE: Final = 512
_RECEIVE_QUEUE: Final = 64
_BATCH: Final = 32
_CONNECT_TIMEOUT: Final = 2_000
_FRAMES: Final = 2
_MESSAGE_MAX: Final = protocol.CHUNK_MAX + protocol.HEADER_MAX

_INCOMPATIBLE: Final = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_WATCHED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | _INCOMPATIBLE
)


class ConnectionEnd(enum.Enum):
    """Why a link is of no use any more."""

    REFUSED = "the connection was refused"
    INCOMPATIBLE = "the peer's ZeroMQ handshake is not one of an encoder"
    CLOSED = "the connection was closed before the peer answered: a proxy without its encoder, or no encoder at all"
    RESET = "the connection was closed"
    ENDLESS = "it sent a message without an end"


class ProducerConnection:
    """One connection; when it ends, so does the link. It never reconnects by itself.

    Attributes:
        socket: to be polled, with *monitor* and *undelivered*.

    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        """Begin to connect to *address* (``host:port``).

        Raises:
            ValueError: it is no address.
            zmq.ZMQError: the process has no descriptors left.

        """
        port = int(address.rpartition(":")[2])
        self.malformed = 0
        self.socket = context.socket(zmq.DEALER)
        for option, value in {
            zmq.LINGER: 0,
            zmq.IPV6: 1,
            zmq.SNDHWM: _QUEUE,
            zmq.RCVHWM: _RECEIVE_QUEUE,
            zmq.MAXMSGSIZE: protocol.CHUNK_MAX,
            zmq.RECONNECT_IVL: -1,
            zmq.CONNECT_TIMEOUT: _CONNECT_TIMEOUT,
            **keepalive.OPTIONS,
        }.items():
            self.socket.setsockopt(option, value)
        self._up = False
        self._endless = False
        try:
            self.undelivered = Undelivered(
                _MESSAGE_MAX, is_ours=lambda each: _port_of(each) == port, on_cut=self._cut
            )
        except OSError as error:
            self.socket.close(linger=0)
            raise zmq.ZMQError(error.errno) from error
        try:
            self.monitor = self.socket.get_monitor_socket(_WATCHED)
        except zmq.ZMQError:  # no descriptors are left
            self.undelivered.close()
            self.socket.close(linger=0)
            raise
        try:
            self.socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"{address!r} is not an address to connect to: {error.strerror}") from error

    def send(self, message: protocol.Request) -> bool:
        """Send, or tell that the queue is full."""
        try:
            self.socket.send(protocol.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def receive(self) -> Iterator[tuple[protocol.Answer, Any]]:
        """Yield the answers that have come, a chunk's with its bytes; what is none is dropped and counted."""
        for _ in range(_BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                self.undelivered.look()
                return
            self.undelivered.delivered(frames)
            try:
                answer = protocol.decode_answer(frames[0].bytes)
            except protocol.WireError:
                self.malformed += 1
                continue
            if len(frames) != (_FRAMES if isinstance(answer, protocol.Chunk) else 1):
                self.malformed += 1
                continue
            yield answer, frames[1].buffer if len(frames) == _FRAMES else None

    def fate(self) -> ConnectionEnd | None:
        """Return why the link has ended, None while it has not."""
        for event in self.undelivered.note(self.monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._up = True
            elif event & _INCOMPATIBLE:
                return ConnectionEnd.INCOMPATIBLE
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                return ConnectionEnd.CLOSED
            elif event != zmq.EVENT_CONNECTED:
                if self._endless:
                    return ConnectionEnd.ENDLESS
                return ConnectionEnd.RESET if self._up else ConnectionEnd.REFUSED
        return None

    def close(self) -> None:
        """Drop what is queued and the connection. Idempotent."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
            self.socket.close(linger=0)
            self.undelivered.close()

    def _cut(self, _why: str, _host: str) -> None:
        self._endless = True


def _port_of(connection: sockets.socket) -> int:
    """Return the port of a connection's other end."""
    return int(connection.getpeername()[1])
