"""Bounds what a connection may have sent that is no message yet.

libzmq collects a message until its last frame, and only whole messages count against a socket's high-water mark: a peer that
announces "more" for ever makes the process grow without a word to us. What can be seen from outside is how many bytes libzmq
has read from the connection (``TCP_INFO``, less what is still unread) and how many have come out in messages. What lies between
is not whole. Where it is more than any message of ours has, the connection is shut down, and libzmq drops the half message.

The descriptors are libzmq's, named by its monitor and by each frame (``ZMQ_SRCFD``). They are never kept open, and nothing is
done to one before a copy of it has been found to be that connection. For TCP on Linux; elsewhere it does nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INTERVAL: Final = 0.005
"""Seconds between two looks at a connection that sends: what comes meanwhile is on top of the bound."""

_OVERHEAD: Final = 4096 + 8192
"""Bytes that are no messages (greetings; there are no heartbeats), and those that libzmq has read and not taken apart yet."""

_ARRIVALS: Final = select.EPOLLIN | select.EPOLLET | select.EPOLLONESHOT
_SHORT_FRAME: Final = 255
_BYTES_RECEIVED: Final = struct.Struct("=128xQ")  # in struct tcp_info, since Linux 4.1
_UNREAD: Final = struct.Struct("i")
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class _Connection:
    """What *peer*'s connection has sent: *read* by libzmq when we last looked, *delivered* to us by now."""

    peer: Any
    read: int = 0
    delivered: int = 0


class Undelivered:
    """The connections of one ZeroMQ socket; on the thread that uses it."""

    def __init__(
        self,
        limit: int,
        *,
        is_ours: Callable[[socket.socket], bool],
        on_cut: Callable[[str, str], None],
        most: int = 1,
    ) -> None:
        """Allow *most* connections, and each to be *limit* bytes of messages ahead of what was taken from it.

        Args:
            limit: as they are on the wire.
            is_ours: whether a TCP connection is one of this ZeroMQ socket.
            on_cut: is told of a connection that was shut down: "endless" or "too_many", and its host.
            most: any further connection is shut down at once.

        Raises:
            OSError: the process has no descriptors left.

        """
        self._limit = limit + _OVERHEAD
        self._is_ours = is_ours
        self._on_cut = on_cut
        self._most = most
        self._connections: dict[int, _Connection] = {}
        self._stirred: set[int] = set()
        self._look_after = 0.0
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Return a descriptor that is readable when a connection has sent something: then :meth:`look`."""
        return self._epoll.fileno()

    @property
    def wants_look(self) -> bool:
        """Whether to :meth:`look` again after :data:`INTERVAL`, whatever happens."""
        return bool(self._stirred)

    def note(self, monitor: zmq.Socket[bytes]) -> list[int]:
        """Take what libzmq tells of connections; return its events."""
        events = []
        with contextlib.suppress(zmq.ZMQError):
            while True:
                told = recv_monitor_message(monitor, zmq.NOBLOCK)
                events.append(told["event"])
                if told["event"] in (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED):
                    self._opened(told["value"])
                elif told["event"] in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                    self._forget(told["value"])
        return events

    def delivered(self, frames: Iterable[zmq.Frame]) -> None:
        """Note the frames of a message that was taken."""
        for frame in frames:
            try:
                connection = self._connections.get(frame.get(zmq.SRCFD))
            except zmq.ZMQError:
                # Better no bound than to cut those who did nothing.
                self._connections.clear()
                self._most = 0
                return
            if connection is not None:
                size = len(frame)
                connection.delivered += size + (2 if size <= _SHORT_FRAME else 9)

    def look(self) -> None:
        """Shut down the connections of which too much, read by the look before, has not been taken by now.

        To be called after all messages that were there have been taken, or with a limit that has room for those that wait.
        """
        self._stirred.update(fd for fd, _ in self._epoll.poll(0))
        now = time.monotonic()
        if not self._stirred or now < self._look_after:
            return
        self._look_after = now + INTERVAL
        stirred, self._stirred = self._stirred, set()
        for fd in stirred:
            connection = self._connections.get(fd)
            if connection is None:
                continue
            if connection.read - connection.delivered > self._limit:
                self._cut(fd, "endless")
                continue
            read = self._bytes_read(fd, connection)
            if read is None:
                self._forget(fd)
                continue
            connection.read = read
            if read - connection.delivered > self._limit:
                self._stirred.add(fd)
            else:
                with contextlib.suppress(OSError):  # it has ended
                    self._epoll.modify(fd, _ARRIVALS)

    def cut(self, frame: zmq.Frame, why: str) -> None:
        """Shut down the connection that *frame* came from, for a reason of the caller's."""
        with contextlib.suppress(zmq.ZMQError):
            fd = frame.get(zmq.SRCFD)
            if fd in self._connections:
                self._cut(fd, why)

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._epoll.close()
        self._connections.clear()
        self._stirred.clear()

    def _opened(self, fd: int) -> None:
        self._forget(fd)
        copy = self._copy(fd) if self._most else None
        if copy is None:
            return
        with copy:
            self._connections[fd] = _Connection(_peer_of(copy))
        if len(self._connections) > self._most:
            self._cut(fd, "too_many")
            return
        with contextlib.suppress(OSError):  # it has ended
            self._epoll.register(fd, _ARRIVALS)

    def _forget(self, fd: int) -> None:
        self._connections.pop(fd, None)
        self._stirred.discard(fd)

    def _cut(self, fd: int, why: str) -> None:
        connection = self._connections.pop(fd)
        copy = self._copy(fd)
        if copy is None:
            return
        with copy:
            if _peer_of(copy) != connection.peer:
                return
            with contextlib.suppress(OSError):
                # A reset when libzmq closes it: else whoever sends on would wait for room for ever.
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                copy.shutdown(socket.SHUT_RDWR)
        self._on_cut(why, connection.peer[0] if connection.peer else "")

    def _bytes_read(self, fd: int, connection: _Connection) -> int | None:
        copy = self._copy(fd)
        if copy is None:
            return None
        with copy:
            if _peer_of(copy) != connection.peer:
                return None
            try:
                (received,) = _BYTES_RECEIVED.unpack_from(
                    copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
                )
                (unread,) = _UNREAD.unpack(fcntl.ioctl(copy, termios.FIONREAD, bytes(_UNREAD.size)))
            except (OSError, struct.error):
                return None
        return int(received - unread)

    def _copy(self, fd: int) -> socket.socket | None:
        """Return a descriptor of our own to the connection, None if it is none of this ZeroMQ socket (any more)."""
        try:
            number = os.dup(fd)
        except OSError:
            return None
        try:
            copy = socket.socket(fileno=number)
        except OSError:  # no socket
            os.close(number)
            return None
        with contextlib.suppress(OSError):
            if copy.type == socket.SOCK_STREAM and copy.proto == socket.IPPROTO_TCP and self._is_ours(copy):
                return copy
        copy.close()
        return None


def _peer_of(connection: socket.socket) -> Any:
    with contextlib.suppress(OSError):
        return connection.getpeername()
    return None
