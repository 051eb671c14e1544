"""Decides which clients a producer with CURVE serves: a ZAP handler (RFC 27) on the server's own thread.

``zmq.auth.thread`` would add a thread and an event loop for one look-up in a set; the server polls this socket with its
own instead, so the handler starts and ends with it. libzmq asks once a connection, after the client has proved that it
has the secret of its public key, and before any message of the client is delivered. While no answer comes the
connection waits, at most 30 s (libzmq's ``HANDSHAKE_IVL``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import zmq
from zmq.utils import z85

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ServerKeys

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_BATCH: Final = 64
_FRAMES: Final = 9
"""Identity and delimiter of the asking session, then version, request id, domain, address, identity, mechanism, key."""


class Authenticator:
    """Answers libzmq's ZAP requests of one context.

    Attributes:
        socket: to be polled; closed by :meth:`close`.

    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys, on_denied: Callable[[str, str], None]
    ) -> None:
        """Bind. *on_denied* gets the address and the public key (Z85) of each client that is turned away."""
        self._allowed = keys.allowed
        self._on_denied = on_denied
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)

    def answer(self) -> None:
        """Answer the requests that have arrived. Never blocks."""
        for _ in range(_BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            if len(frames) == _FRAMES and frames[2] == _VERSION:
                self._decide(frames)

    def _decide(self, frames: list[bytes]) -> None:
        session, delimiter, version, request, _domain, address, _identity, mechanism, key = frames
        allowed = mechanism == b"CURVE" and key in self._allowed
        status, text = (b"200", b"OK") if allowed else (b"400", b"unknown key")
        self.socket.send_multipart(
            [session, delimiter, version, request, status, text, b"", b""], zmq.NOBLOCK
        )
        if not allowed:
            self._on_denied(address.decode(errors="replace"), z85.encode(key).decode())

    def close(self) -> None:
        """Unbind."""
        self.socket.close(linger=0)
