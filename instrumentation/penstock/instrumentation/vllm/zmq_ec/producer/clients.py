"""The clients of a producer: what one consumer may take of it, so that others get their share; and with CURVE, which it serves.

Both on the server's own thread. :class:`FairShare` is pure. :class:`Authenticator` is a ZAP handler (RFC 27).
``zmq.auth.thread`` would add a thread and an event loop for one look-up in a set; the server polls this socket with its
own instead, so the handler starts and ends with it. libzmq asks once a connection, after the client has proved that it
has the secret of its public key, and before any message of the client is delivered. While no answer comes the
connection waits, at most 30 s (libzmq's ``HANDSHAKE_IVL``).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zmq
from zmq.utils import z85

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ServerKeys

PEERS_MAX: Final = 1_024

RATE: Final = 10_000.0
"""Requests a second; as many may come at once after a pause. A consumer of ours makes less than half of that."""

ITEMS_MAX: Final = 8
"""Items that are on their way to one consumer: what is on its way cannot be evicted. A consumer of ours asks for half of that at a time."""

CHUNKS_MAX: Final = 32
"""Chunks that are on their way to one consumer. A consumer of ours asks for half of that at a time."""

PATIENCE: Final = 1.0
"""Seconds that the oldest of these must have been on its way before one is too many: a thread of pyzmq releases sent
memory a little later, and a consumer that reads what it asked for is never refused."""


class FairShare:
    """Counts by consumer; the last :data:`PEERS_MAX` of them."""

    def __init__(self) -> None:
        self._peers: OrderedDict[Hashable, _Share] = OrderedDict()

    def exceeds_rate(self, peer: Hashable, now: float) -> bool:
        """Count a request of *peer*; return whether it exceeds :data:`RATE`."""
        share = self._peers.get(peer)
        if share is None:
            share = self._peers[peer] = _Share(now)
            if len(self._peers) > PEERS_MAX:
                self._peers.popitem(last=False)
        self._peers.move_to_end(peer)
        return share.exceeds_rate(now)

    def is_saturated(self, peer: Hashable, item: str, now: float) -> bool:
        """Return whether so much is on its way to *peer* that *item* must not be added."""
        share = self._peers.get(peer)
        return share is not None and share.is_saturated(item, now)

    def on_sent(self, peer: Hashable, item: str, payload: Any, now: float) -> None:
        """Count *payload*, a part of *item*, as on its way until it is garbage."""
        share = self._peers.get(peer)
        if share is not None:
            share.underway.append(_Underway(weakref.ref(payload), item, now))

    def __len__(self) -> int:
        return len(self._peers)


class _Underway(NamedTuple):
    payload: weakref.ref[Any]
    item: str
    since: float


class _Share:
    def __init__(self, now: float) -> None:
        self.underway: deque[_Underway] = deque()
        self._tokens = RATE
        self._filled = now

    def exceeds_rate(self, now: float) -> bool:
        self._tokens = min(RATE, self._tokens + (now - self._filled) * RATE)
        self._filled = now
        if self._tokens < 1:
            return True
        self._tokens -= 1
        return False

    def is_saturated(self, item: str, now: float) -> bool:
        while self.underway and self.underway[0].payload() is None:  # they leave in order
            self.underway.popleft()
        if not self.underway or now - self.underway[0].since < PATIENCE:
            return False
        if len(self.underway) >= CHUNKS_MAX:
            return True
        items = {each.item for each in self.underway}
        return item not in items and len(items) >= ITEMS_MAX


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
