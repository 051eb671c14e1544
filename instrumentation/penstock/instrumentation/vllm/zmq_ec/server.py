"""A producer's socket and its thread.

What a peer can do is bounded: a request has at most ``wire.HEADER_MAX`` bytes (libzmq drops the connection of whoever
sends more), a peer that does not read gets at most ``_SEND_QUEUE`` chunks queued, which are references to the cache's
memory (it counts them), and then its answers are dropped and counted; a peer that does not even answer heartbeats is
disconnected. One limit is libzmq's: a message of endless many frames is collected before we see it, so the port belongs
inside the cluster's network, like every port over which vLLM moves state.
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
from penstock.instrumentation.vllm.ec_contract import EcTransfer
from penstock.instrumentation.vllm.peers import Peer
from penstock.instrumentation.vllm.zmq_ec import wire

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.ec_contract import EcObserver
    from penstock.instrumentation.vllm.zmq_ec.responder import Reply, Responder

logger = logging.getLogger("vllm.penstock.zmq_ec")

_SEND_QUEUE: Final = 32
_RECEIVE_QUEUE: Final = 256
_HEARTBEAT: Final = 2_000
_HEARTBEAT_TIMEOUT: Final = 6_000
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
        self.observer: EcObserver | None = None
        self._responder = responder
        self._log_after = 0.0
        self._handed_out: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        self._to_seal: deque[str] = deque(maxlen=_TO_SEAL_MAX)
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket = _router(self._context, ipv6=":" in host)
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
        self._socket.close(linger=0)
        self._context.term()
        os.close(self._wake)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while not self._stopping.is_set():
            try:
                poller.poll()
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                while self._to_seal:
                    self._responder.seal(self._to_seal.popleft())
                for _ in range(_BATCH):
                    if not self._serve():
                        break
            except Exception:  # one bad message must not end the service
                self.counts["error"] += 1
                logger.exception("ZmqECConnector: an answer failed")

    def _serve(self) -> bool:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        if len(frames) != 2:  # noqa: PLR2004  (who, and one frame)
            self._dropped("malformed", frames[-1])
            return True
        identity, request = frames[0].bytes, frames[1]
        reply = self._responder.answer(request.bytes)
        try:
            self._send(identity, reply)
        except zmq.ZMQError as error:
            # The peer does not read, or is gone; it asks again if it still wants to know.
            self._dropped("slow_peer" if error.errno == zmq.EAGAIN else "peer_gone", request)
            return True
        if reply.item:
            self._note(identity, reply, _host_of(request))
        return True

    def _send(self, identity: bytes, reply: Reply) -> None:
        self._socket.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
        last = len(reply.frames) - 1
        for index, frame in enumerate(reply.frames):
            flags = zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE
            self._socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_FROM)

    def _dropped(self, reason: str, request: zmq.Frame) -> None:
        self.counts[reason] += 1
        now = time.monotonic()
        if now >= self._log_after:
            self._log_after = now + _LOG_INTERVAL
            logger.warning(
                "ZmqECConnector: a message from or to %s was dropped (%s)", _host_of(request), self.counts
            )

    def _note(self, identity: bytes, reply: Reply, host: str) -> None:
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
                observer.sent(EcTransfer(reply.item, Peer(host), begun, now, reply.size, ok=True))


def _router(context: zmq.Context[zmq.Socket[bytes]], *, ipv6: bool) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    for option, value in {
        zmq.LINGER: 0,
        zmq.IPV6: int(ipv6),
        zmq.ROUTER_MANDATORY: 1,
        zmq.SNDHWM: _SEND_QUEUE,
        zmq.RCVHWM: _RECEIVE_QUEUE,
        zmq.MAXMSGSIZE: wire.HEADER_MAX,
        zmq.HEARTBEAT_IVL: _HEARTBEAT,
        zmq.HEARTBEAT_TIMEOUT: _HEARTBEAT_TIMEOUT,
    }.items():
        socket.setsockopt(option, value)
    return socket


def _host_of(frame: zmq.Frame) -> str:
    """Return the address of the host that sent it; its port is any."""
    with contextlib.suppress(zmq.ZMQError, ValueError):
        return str(ipaddress.ip_address(frame.get("Peer-Address")))
    return Peer().address
