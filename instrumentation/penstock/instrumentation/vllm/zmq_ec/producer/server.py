"""A producer's socket and its thread.

libzmq drops a connection that sends a frame of more than ``protocol.HEADER_MAX`` bytes. ``clients.py`` bounds how many
requests of a peer are answered and how much is on its way to it. Answers to a peer that does not read are dropped and
counted; ``sockets.py`` disconnects it. With keys it serves only clients that ``clients.py`` allows. The frames that are sent refer to the cache's memory.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Final

import zmq
from penstock.instrumentation.core import LogLimit
from penstock.instrumentation.transport import Backoff
from penstock.instrumentation.vllm.ec import EcTransfer
from penstock.instrumentation.vllm.naming import Peer
from penstock.instrumentation.vllm.zmq_ec.producer.clients import Authenticator, FairShare
from penstock.instrumentation.vllm.zmq_ec.producer.host_cache import SMALL
from penstock.instrumentation.vllm.zmq_ec.wire import curve, protocol, sockets

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.ec import EcListener
    from penstock.instrumentation.vllm.zmq_ec.producer.responder import Reply, Responder
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import ServerKeys

logger = logging.getLogger("vllm.penstock.zmq_ec")

_SEND_QUEUE: Final = 256
_RECEIVE_QUEUE: Final = 64
_BATCH: Final = 64
_HAND_OUTS_MAX: Final = 1_024
_ZERO_COPY_FROM: Final = 64 << 10  # below, a copy is cheaper than what pyzmq does to hand memory over
_TO_SEAL_MAX: Final = 1_024
_ATTACHED_MAX: Final = 1_024
_STOP_WAIT: Final = 5.0
_LOG_INTERVAL: Final = 60.0


class Server:
    """Serves what *responder* answers at one address, from :meth:`start` to :meth:`stop`.

    Attributes:
        address: ``host:port`` it listens at; the port is real also where 0 was asked for.
        counts: messages that were dropped, by reason.
        observer: gets each item that was sent whole.

    """

    def __init__(self, responder: Responder, host: str, port: int, keys: ServerKeys | None = None) -> None:
        """Bind; with *keys*, to serve CURVE only.

        Raises:
            ValueError: the address cannot be bound; says why.

        """
        self.counts: Counter[str] = Counter()
        self.observer: EcListener | None = None
        self._responder = responder
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL
        self._shares = FairShare()
        self._sending: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        # The consumers that have last been told where the memory is, or have copied out of it.
        self._attached: OrderedDict[bytes, None] = OrderedDict()
        self._to_seal: deque[str] = deque(maxlen=_TO_SEAL_MAX)
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._authenticator = (
            None if keys is None else Authenticator(self._context, keys, on_denied=self._on_denied)
        )
        self._socket = _router(self._context, keys, ipv6=":" in host)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        bracketed = f"[{host}]" if ":" in host else host
        try:
            self._socket.bind(f"tcp://{bracketed}:{port}" if port else f"tcp://{bracketed}:*")
        except zmq.ZMQError as error:
            self._close()
            raise ValueError(
                f"ZmqECConnector cannot listen at {bracketed}:{port}: {error.strerror}. "
                "Set ec_ip to an address of this host and ec_port to a free port."
            ) from error
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = endpoint.removeprefix("tcp://")
        self._thread = threading.Thread(target=self._run, name="penstock-ec-server", daemon=True)

    def start(self) -> None:
        """Serve, on a thread of its own."""
        self._thread.start()

    def seal(self, item: str, nbytes: int) -> None:
        """Compute the checksums of *item*, of so many bytes, on the server's thread, ahead of the first probe. From any thread.

        A small one has its fingerprint, and most often needs no other.
        """
        if nbytes <= SMALL and self._attempt(self._responder.fingerprint, item):
            return
        self._to_seal.append(item)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Stop the thread and close the socket. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT)
        if not self._thread.is_alive():
            self._close()

    def _close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()
        os.close(self._wake)

    def _run(self) -> None:
        poller = zmq.Poller()
        for polled in (self._socket, self._monitor, self._wake):
            poller.register(polled, zmq.POLLIN)
        if self._authenticator is not None:
            poller.register(self._authenticator.socket, zmq.POLLIN)
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._turn(poller)
            except Exception as error:  # noqa: BLE001  (the thread must outlive it)
                self._log_error("it cannot serve now", error)
                # What does not go away by itself must not take the processor from the model.
                self._stopping.wait(backoff.next())
            else:
                backoff.reset()

    def _turn(self, poller: zmq.Poller) -> None:
        poller.poll()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._seal_all()
        if self._authenticator is not None:
            self._authenticator.answer()
        for _, error in sockets.drain_events(self._monitor):
            self._on_failed_handshake(error)
        for _ in range(_BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            try:
                self._serve(frames)
            except Exception as error:  # noqa: BLE001  (one bad message must not keep the others waiting)
                self._log_error("an answer failed", error)

    def _seal_all(self) -> None:
        while self._to_seal:
            self._attempt(self._responder.seal, self._to_seal.popleft())

    def _attempt(self, seal: Callable[[str], bool], item: str) -> bool:
        """Return whether *item* has all checksums that it needs."""
        try:
            return seal(item)
        except Exception as error:  # noqa: BLE001  (it is computed when it is asked for; the others are computed now)
            self._log_error("a fingerprint failed", error)
            return False

    def _serve(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:  # noqa: PLR2004  (identity and request)
            self._count_drop("malformed", _host_of(frames[-1]))
            return
        identity, request = frames[0].bytes, frames[1]
        now = time.monotonic()
        if self._shares.exceeds_rate(identity, now):
            self._count_drop("too_fast", _host_of(request))
            return
        reply = self._responder.answer(request.bytes)
        if not reply.frames:
            self._on_taken(identity, reply, request)
            return
        if reply.item and self._shares.is_saturated(identity, reply.item, now):
            reply = self._responder.busy(reply)
        try:
            self._send(identity, reply)
        except zmq.ZMQError as error:
            # The peer does not read, or is gone; it asks again if it still wants to know.
            self._count_drop("slow_peer" if error.errno == zmq.EAGAIN else "peer_gone", _host_of(request))
            return
        if reply.attaches:
            self._attached[identity] = None
            if len(self._attached) > _ATTACHED_MAX:
                self._attached.popitem(last=False)
        if reply.item:
            self._shares.on_sent(identity, reply.item, reply.frames[-1], now)
            self._report_sent(identity, reply, request)

    def _send(self, identity: bytes, reply: Reply) -> None:
        self._socket.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
        last = len(reply.frames) - 1
        for index, frame in enumerate(reply.frames):
            flags = zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE
            self._socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_FROM)

    def _count_drop(self, reason: str, host: str) -> None:
        self.counts[reason] += 1
        if self._log.admit(reason) is not None:
            logger.warning(
                "ZmqECConnector: a message from or to %s was dropped: %s (in all: %s)",
                host,
                reason,
                dict(self.counts),
            )

    def _on_denied(self, host: str, public_key: str) -> None:
        self._refused(
            "curve_denied",
            f"the client at {host} has the public key {public_key}, which curve_allowed_clients does not have: "
            "copy its .key file there and restart this engine",
        )

    def _on_failed_handshake(self, error: int) -> None:
        if error == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            ours, theirs = ("with", "without") if self._authenticator is not None else ("without", "with")
            text = f"it came {theirs} CURVE to this producer {ours} CURVE: set the curve_ keys on both sides"
            self._refused("curve_mismatch", text)
        elif error == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            text = (
                "it expects another public key: its curve_server_key_file must be this producer's .key file"
            )
            self._refused("curve_wrong_server_key", text)
        else:
            self._refused("handshake", "its handshake is not ZeroMQ's")

    def _refused(self, reason: str, text: str) -> None:
        self.counts[reason] += 1
        if self._log.admit(reason) is not None:
            logger.warning(
                "ZmqECConnector: a connection was refused: %s (in all: %s)", text, dict(self.counts)
            )

    def _log_error(self, what: str, error: Exception) -> None:
        self.counts["error"] += 1
        if self._log.admit(what) is not None:
            logger.error("ZmqECConnector: %s", what, exc_info=error)

    def _on_taken(self, identity: bytes, reply: Reply, request: zmq.Frame) -> None:
        """Report a copy that a consumer says it has made, if it has asked where the memory is."""
        if identity not in self._attached:
            self._count_drop("unasked", _host_of(request))
            return
        self._attached.move_to_end(identity)
        size = self._responder.take(reply.item)
        observer = self.observer
        if observer is not None and size:
            now = time.time_ns()
            peer = Peer(_host_of(request))
            observer.sent(EcTransfer(reply.item, peer, now - reply.taken_in, now, size, ok=True))

    def _report_sent(self, identity: bytes, reply: Reply, request: zmq.Frame) -> None:
        now = time.time_ns()
        key = (identity, reply.item)
        if reply.first:
            self._sending[key] = now
            if len(self._sending) > _HAND_OUTS_MAX:
                self._sending.popitem(last=False)
        if reply.last:
            begun = self._sending.pop(key, now)
            observer = self.observer
            if observer is not None:
                peer = Peer(_host_of(request))
                observer.sent(EcTransfer(reply.item, peer, begun, now, reply.size, ok=True))


def _router(
    context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys | None, *, ipv6: bool
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    for option, value in {
        zmq.LINGER: 0,
        zmq.IPV6: int(ipv6),
        zmq.ROUTER_MANDATORY: 1,
        zmq.SNDHWM: _SEND_QUEUE,
        zmq.RCVHWM: _RECEIVE_QUEUE,
        zmq.MAXMSGSIZE: protocol.HEADER_MAX + (0 if keys is None else curve.OVERHEAD),
        **sockets.KEEPALIVE,
    }.items():
        socket.setsockopt(option, value)
    if keys is not None:
        keys.apply(socket)
    return socket


def _host_of(frame: zmq.Frame) -> str:
    """Return the address of the host that sent it, without a meaningful port."""
    with contextlib.suppress(zmq.ZMQError, ValueError):
        return str(ipaddress.ip_address(frame.get("Peer-Address")))
    return Peer().address
