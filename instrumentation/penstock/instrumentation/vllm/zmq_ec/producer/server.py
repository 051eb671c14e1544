"""A producer's socket and its thread.

What a peer can do is bounded: a frame of a request has at most ``wire.HEADER_MAX`` bytes (libzmq drops the connection of
whoever sends more), and so has a message (``undelivered.py``); how many requests it may make, and how much may be
on its way to it, says ``fair_share.py``; if it takes not even the refusals, its answers are dropped and counted, and in the end
it is disconnected (``keepalive.py``). There are at most ``_CONNECTIONS`` peers. What is sent is references to the cache's memory.
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
from penstock.instrumentation.vllm.zmq_ec.producer.fair_share import FairShare
from penstock.instrumentation.vllm.zmq_ec.wire import keepalive, protocol
from penstock.instrumentation.vllm.zmq_ec.wire.message_bound import INTERVAL, Undelivered

if TYPE_CHECKING:
    import socket as sockets

    from penstock.instrumentation.vllm.ec import EcListener
    from penstock.instrumentation.vllm.zmq_ec.producer.responder import Reply, Responder

logger = logging.getLogger("vllm.penstock.zmq_ec")

_SEND_QUEUE: Final = 256
_RECEIVE_QUEUE: Final = 64
_CONNECTIONS: Final = 1_024
_REQUEST_MAX: Final = protocol.HEADER_MAX + 9  # as ZeroMQ frames it
_BATCH: Final = 64
_HAND_OUTS_MAX: Final = 1_024
_ZERO_COPY_FROM: Final = 64 << 10  # below, a copy is cheaper than what pyzmq does to hand memory over
_TO_SEAL_MAX: Final = 1_024
_STOP_WAIT: Final = 5.0
_LOG_INTERVAL: Final = 60.0


class Server:
    """Serves what *responder* answers at one address, from :meth:`start` to :meth:`stop`.

    Attributes:
        address: ``host:port`` it listens at; the port is real also where 0 was asked for.
        counts: messages that were dropped, by reason.
        observer: is told of each item that was handed out whole.

    """

    def __init__(self, responder: Responder, host: str, port: int) -> None:
        """Bind.

        Raises:
            ValueError: that does not work here; says why.

        """
        self.counts: Counter[str] = Counter()
        self.observer: EcListener | None = None
        self._responder = responder
        self._log = LogLimit()
        self._log.interval = _LOG_INTERVAL
        self._shares = FairShare()
        self._handed_out: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        self._to_seal: deque[str] = deque(maxlen=_TO_SEAL_MAX)
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket = _router(self._context, ipv6=":" in host)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._undelivered = Undelivered(
            (_RECEIVE_QUEUE + 1) * _REQUEST_MAX, is_ours=self._accepted, on_cut=self._cut, most=_CONNECTIONS
        )
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
        self._port = int(endpoint.rpartition(":")[2])
        self._thread = threading.Thread(target=self._run, name="penstock-ec-server", daemon=True)

    def start(self) -> None:
        """Serve, on a thread of its own."""
        self._thread.start()

    def seal(self, item: str) -> None:
        """Have the checksum of *item* made on the server's thread, before anybody asks. From any thread."""
        self._to_seal.append(item)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread and close the socket. Idempotent."""
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
        self._undelivered.close()
        self._context.term()
        os.close(self._wake)

    def _run(self) -> None:
        poller = zmq.Poller()
        for polled in (self._socket, self._monitor, self._undelivered.fileno(), self._wake):
            poller.register(polled, zmq.POLLIN)
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._turn(poller)
            except Exception as error:  # noqa: BLE001  (the thread must outlive it)
                self._failed("it cannot serve now", error)
                # What does not go away by itself must not take the processor from the model.
                self._stopping.wait(backoff.next())
            else:
                backoff.reset()

    def _turn(self, poller: zmq.Poller) -> None:
        poller.poll(INTERVAL * 1000 if self._undelivered.wants_look else None)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._to_seal:
            self._responder.seal(self._to_seal.popleft())
        self._undelivered.note(self._monitor)
        for _ in range(_BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._undelivered.delivered(frames[1:])
            try:
                self._serve(frames)
            except Exception as error:  # noqa: BLE001  (one bad message must not keep the others waiting)
                self._failed("an answer failed", error)
        self._undelivered.look()

    def _serve(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:  # noqa: PLR2004  (who, and one frame)
            self._dropped("malformed", _host_of(frames[-1]))
            return
        identity, request = frames[0].bytes, frames[1]
        now = time.monotonic()
        if self._shares.too_fast(identity, now):
            self._undelivered.cut(request, "too_fast")
            return
        reply = self._responder.answer(request.bytes)
        if reply.item and self._shares.has_enough(identity, reply.item, now):
            reply = self._responder.busy(reply)
        try:
            self._send(identity, reply)
        except zmq.ZMQError as error:
            # The peer does not read, or is gone; it asks again if it still wants to know.
            self._dropped("slow_peer" if error.errno == zmq.EAGAIN else "peer_gone", _host_of(request))
            return
        if reply.item:
            self._shares.sent(identity, reply.item, reply.frames[-1], now)
            self._note(identity, reply, request)

    def _send(self, identity: bytes, reply: Reply) -> None:
        self._socket.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
        last = len(reply.frames) - 1
        for index, frame in enumerate(reply.frames):
            flags = zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE
            self._socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_FROM)

    def _accepted(self, connection: sockets.socket) -> bool:
        return bool(connection.getsockname()[1] == self._port)

    def _dropped(self, reason: str, host: str) -> None:
        self._count(reason, f"a message from or to {host} was dropped")

    def _cut(self, reason: str, host: str) -> None:
        self._count(reason, f"the connection from {host} was cut")

    def _count(self, reason: str, what: str) -> None:
        self.counts[reason] += 1
        if self._log.admit(reason) is not None:
            logger.warning("ZmqECConnector: %s: %s (in all: %s)", what, reason, dict(self.counts))

    def _failed(self, what: str, error: Exception) -> None:
        self.counts["error"] += 1
        if self._log.admit(what) is not None:
            logger.error("ZmqECConnector: %s", what, exc_info=error)

    def _note(self, identity: bytes, reply: Reply, request: zmq.Frame) -> None:
        now = time.time_ns()
        key = (identity, reply.item)
        if reply.first:
            self._handed_out[key] = now
            if len(self._handed_out) > _HAND_OUTS_MAX:
                self._handed_out.popitem(last=False)
        if reply.last:
            begun = self._handed_out.pop(key, now)
            observer = self.observer
            if observer is not None:
                peer = Peer(_host_of(request))
                observer.sent(EcTransfer(reply.item, peer, begun, now, reply.size, ok=True))


def _router(context: zmq.Context[zmq.Socket[bytes]], *, ipv6: bool) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    for option, value in {
        zmq.LINGER: 0,
        zmq.IPV6: int(ipv6),
        zmq.ROUTER_MANDATORY: 1,
        zmq.SNDHWM: _SEND_QUEUE,
        zmq.RCVHWM: _RECEIVE_QUEUE,
        zmq.MAXMSGSIZE: protocol.HEADER_MAX,
        **keepalive.OPTIONS,
    }.items():
        socket.setsockopt(option, value)
    return socket


def _host_of(frame: zmq.Frame) -> str:
    """Return the address of the host that sent it; its port is any."""
    with contextlib.suppress(zmq.ZMQError, ValueError):
        return str(ipaddress.ip_address(frame.get("Peer-Address")))
    return Peer().address
