"""A consumer's connection to one producer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ProducerConnection

from tests.support.ec.rig import Notes, feature, request, rig, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"


@contextlib.contextmanager
def listener(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one connection after the other as *behave* says; yields the address."""
    with socket.create_server((HOST, 0)) as server:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    with connection:
                        behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"{HOST}:{server.getsockname()[1]}"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _closes(connection: socket.socket) -> None:
    """Close at once, as a TCP proxy does whose backend is down."""


def _closes_after_the_greeting(connection: socket.socket) -> None:
    """Close a little later."""
    connection.recv(64)


def _resets(connection: socket.socket) -> None:
    connection.recv(64)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("behave", [_closes, _closes_after_the_greeting, _resets])
def test_a_proxy_without_its_encoder(behave: Callable[[socket.socket], None]) -> None:
    """The connection is taken and closed: the encoder is away, which says nothing about what it speaks."""
    with listener(behave) as address, rig(address) as consumer:
        notes = Notes()
        consumer.consumer.observe(notes)
        consumer.settle(request("r", feature("a", 4)))
    (failure,) = notes.failures
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_REMOTE_RESET)
    assert "a proxy without its encoder" in failure.text


def test_the_wait_for_one_producer_names_it_at_once() -> None:
    """While the only producer that may have an item is probed, the wait is for it."""
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        with rig(address) as consumer:
            assert not consumer.consumer.ensure(request("r", feature("a", 4)), 0)
            found = consumer.consumer.items.peer_of("a")
    assert found is not None
    assert found.address == address


def test_the_wait_for_several_producers_names_the_last_that_is_left() -> None:
    """Of two, one is gone: from then on the wait is for the other, which does not answer."""
    with socket.create_server((HOST, 0)) as silent, listener(_closes_after_the_greeting) as gone:
        address = f"{HOST}:{silent.getsockname()[1]}"
        with rig(address, gone) as consumer:
            notes = Notes()
            consumer.consumer.observe(notes)
            assert not consumer.consumer.ensure(request("r", feature("a", 4)), 0)
            found = wait_for(lambda: consumer.consumer.items.peer_of("a"))
            assert [each.peer.address for each in notes.failures if each.peer is not None] == [gone]
    assert found.address == address


def test_nothing_is_left_open_by_a_connection_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors for the monitor the socket goes too: one that stays would hold up the context's end for ever."""
    made: list[zmq.Socket[bytes]] = []

    def exhausted(socket: zmq.Socket[bytes], *_arguments: Any) -> Any:
        made.append(socket)
        raise zmq.ZMQError(24, "Too many open files")

    monkeypatch.setattr(zmq.Socket, "get_monitor_socket", exhausted)
    context = zmq.Context()
    try:
        with pytest.raises(zmq.ZMQError, match="Too many open files"):
            ProducerConnection(context, "127.0.0.1:9")
        assert [each.closed for each in made] == [True]
    finally:
        context.destroy(linger=0)
