"""A TCP link between two servers that can be stalled and cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16
_LOOK_MILLISECONDS = 20


class Link:
    """Forwards TCP connections on a port of its own to *port*, both on the loopback interface.

    Bytes returned from *port* can be held after some amount: both ends of the connection stay open and wait.
    If *port*'s process dies meanwhile, the held bytes are lost.
    """

    def __init__(self, port: int, *, sees: Callable[[bytes], None] = lambda _: None) -> None:
        """Listen; *sees* gets the bytes for *port* before they are forwarded, on the connection's thread."""
        self._target = (_LOOPBACK, port)
        self._sees = sees
        self._lock = threading.Lock()
        self._left: int | None = None
        self._held = 0
        self._carried = 0
        self._down = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((_LOOPBACK, 0))
        self._threads = [threading.Thread(target=self._accept, name="link", daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """``host:port`` of the near end."""
        return f"{_LOOPBACK}:{self._listener.getsockname()[1]}"

    @property
    def held(self) -> bool:
        """Whether bytes are held now."""
        with self._lock:
            return self._held > 0

    @property
    def carried(self) -> int:
        """Number of bytes returned so far."""
        with self._lock:
            return self._carried

    def lead_to(self, port: int) -> None:
        """Forward new connections to *port* from now on."""
        self._target = (_LOOPBACK, port)

    def hold(self, after: int) -> None:
        """Return *after* more bytes over all connections, then hold the rest."""
        with self._lock:
            self._left = after

    def release(self) -> None:
        """Forward all held and further bytes."""
        with self._lock:
            self._left = None

    def take_down(self) -> None:
        """Close all connections with their held bytes, and refuse new ones."""
        with self._lock:
            self._down = True
            connections = list(self._open)
        _shut(*connections)

    def bring_up(self) -> None:
        """Accept and forward connections again."""
        with self._lock:
            self._down, self._left = False, None

    def close(self) -> None:
        """Close all connections and stop listening."""
        # A plain close would not wake the thread that waits in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        _shut(*connections)
        for thread in list(self._threads):
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    down = self._down
                if down:
                    near.close()
                    continue
                self._threads = [each for each in self._threads if each.is_alive()]
                thread = threading.Thread(target=self._carry, args=(near,), name="link", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, near: socket.socket) -> None:
        """Forward one connection until either end closes."""
        with near, contextlib.suppress(OSError), socket.create_connection(self._target, 5) as far:
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            forward = threading.Thread(target=self._forward, args=(near, far), name="link", daemon=True)
            forward.start()
            self._back(near, far)
            _shut(near, far)
            forward.join()
            with self._lock:
                self._open -= {near, far}

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(_CHUNK):
                self._sees(data)
                far.sendall(data)
        _shut(near, far)

    def _back(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(_CHUNK):
                while data:
                    allowed = self._take(len(data))
                    near.sendall(data[:allowed])
                    data = data[allowed:]
                    if data and not self._wait(far, len(data)):
                        return

    def _take(self, wanted: int) -> int:
        """Return how many of *wanted* bytes may be forwarded now."""
        with self._lock:
            allowed = wanted if self._left is None else min(wanted, self._left)
            if self._left is not None:
                self._left -= allowed
            self._carried += allowed
            return allowed

    def _wait(self, far: socket.socket, waiting: int) -> bool:
        """Hold *waiting* bytes until some may be forwarded; return False if the far end closes first."""
        poll = select.poll()
        poll.register(far, select.POLLRDHUP)
        with self._lock:
            self._held += waiting
        try:
            while True:
                if poll.poll(_LOOK_MILLISECONDS):
                    return False
                with self._lock:
                    if self._left is None or self._left > 0:
                        return True
        finally:
            with self._lock:
                self._held -= waiting


def _shut(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
