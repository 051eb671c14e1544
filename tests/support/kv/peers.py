"""Peers that a decode server can be sent to beside its own prefill server: one to be stopped and killed, and impostors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from demo.common.model import tiny_model
from demo.servers import LOOPBACK, ROOT, Server, ServerSpec
from tests.support.stop import stop_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from demo.stack import Stack

LEASE_SECONDS = 20
_ANSWER_MILLISECONDS = 5000
_LOOK_MILLISECONDS = 50


class Spare:
    """A second prefill server, started when it is first asked for, and anew once it has been killed.

    Its leases are short, and it refuses fault drills.
    """

    def __init__(self, stack: Stack, name: str = "spare", *args: str) -> None:
        """Name the server, and give further arguments of it."""
        self._stack = stack
        self._name = name
        self._args = args
        self._server: Server | None = None

    def server(self) -> Server:
        """Return the running server."""
        if self._server is None:
            self._server = self._start()
        return self._server

    def _start(self) -> Server:
        transfer: dict[str, Any] = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer",
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS},
        }
        spec = ServerSpec(
            self._name,
            "kv_producer",
            # The later one holds.
            args=("--kv-transfer-config", json.dumps(transfer), *self._args),
            env={
                "PENSTOCK_ENDPOINT": self._stack.agent.endpoint,
                "PENSTOCK_SERVER": self._name,
                "PENSTOCK_LABELS": f"role=prefill,tier={self._name}",
            },
        )
        logs = self._stack.prefill.child.log.parent
        server = Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=logs)
        try:
            server.wait_ready()
        except BaseException:
            server.stop()
            raise
        return server

    def kill(self) -> None:
        """``kill -9`` all its processes at once."""
        if self._server is not None:
            server, self._server = self._server, None
            signal_group(server, signal.SIGKILL)
            server.stop()

    def stop(self) -> None:
        """End it; safe to call twice."""
        if self._server is not None:
            self._server.stop()
            self._server = None


def signal_group(server: Server, number: int) -> None:
    """Send a signal to all processes of *server*."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.child.pid, number)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """SIGSTOP all processes of *server* and wait until no thread of theirs runs any more; SIGCONT at the end."""
    try:
        stop_group(server.child.pid)
        yield
    finally:
        signal_group(server, signal.SIGCONT)


class Impostor:
    """A side channel that relays handshakes to a server's own and changes the payload of the answers.

    Attributes:
        port: where it listens.
        asked: how many handshakes it has answered.
        reached: set once a question has come.
        answers: not set while it keeps its answers to itself; vLLM waits five seconds for each.

    """

    def __init__(self, server: Server, change: Callable[[bytes], bytes], *, silent: bool = False) -> None:
        self.asked = 0
        self.reached = threading.Event()
        self.answers = threading.Event()
        if not silent:
            self.answers.set()
        self._behind = f"tcp://{server.peer}"
        self._change = change
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.port: int = self._socket.bind_to_random_port(f"tcp://{LOOPBACK}")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def peer(self) -> str:
        """Its address as engines name it."""
        return f"{LOOPBACK}:{self.port}"

    def close(self) -> None:
        """Stop listening."""
        self._ending.set()
        self.answers.set()
        self._thread.join(2 * _ANSWER_MILLISECONDS / 1000)
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        while not self._ending.is_set():
            if self._socket.poll(_LOOK_MILLISECONDS):
                identity, _, question = self._socket.recv_multipart()
                self.reached.set()
                self.answers.wait()
                payload, *rest = self._ask(question)
                self.asked += 1
                self._socket.send_multipart([identity, b"", self._change(payload), *rest])

    def _ask(self, question: bytes) -> list[bytes]:
        with self._context.socket(zmq.REQ) as behind:
            behind.linger = 0
            behind.rcvtimeo = _ANSWER_MILLISECONDS
            behind.connect(self._behind)
            behind.send(question)
            return behind.recv_multipart()


@contextmanager
def impostor(server: Server, change: Callable[[bytes], bytes], *, silent: bool = False) -> Iterator[Impostor]:
    """Run an :class:`Impostor` in front of *server*; a *silent* one does not answer until it is let."""
    running = Impostor(server, change, silent=silent)
    try:
        yield running
    finally:
        running.close()


def with_hash(compatibility_hash: str) -> Callable[[bytes], bytes]:
    """Return what makes vLLM's own answer one of an engine with another compatibility hash."""

    def change(payload: bytes) -> bytes:
        fields = msgspec.msgpack.decode(payload)
        assert "compatibility_hash" in fields, sorted(fields)
        return msgspec.msgpack.encode({**fields, "compatibility_hash": compatibility_hash})

    return change


def garbled(_: bytes) -> bytes:
    """Return an answer that no vLLM can decode."""
    return b"\xc1 not what you expect"
