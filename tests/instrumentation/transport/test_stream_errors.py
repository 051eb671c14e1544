"""Why there is no agent, in words; each cause is a real one, and grpc's own text is not in the sentence."""

from __future__ import annotations

import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.transport.stream import explain_end
from penstock.instrumentation.transport.streams import Streams

from tests.support.agent.agent import short_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory whose path fits into a socket's address."""
    with short_directory() as path:
        yield path


def _why(endpoint: str) -> str:
    """Connect to *endpoint*, and return why it came to nothing."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    streams = Streams()
    stream = streams.open(endpoint, "/penstock.v1.Ingest/Publish", bytes, inbox)
    try:
        stream.send(b"")
        reason: str = inbox.get(timeout=60).content.reason
    finally:
        stream.close()
        streams.leave()
    for raw in ("FAILED_PRECONDITION", "last error", "addr:", "UNAVAILABLE", "ipv4:", "[field"):
        assert raw not in reason
    return reason


@pytest.mark.usefixtures("kind")
def test_a_socket_that_is_not_there(directory: Path) -> None:
    """The agent has not started, or its directory is not shared."""
    assert _why(f"unix://{directory}/none.sock").startswith("there is no such socket; start penstock-agent")


@pytest.mark.usefixtures("kind")
def test_a_socket_that_was_left_over(directory: Path) -> None:
    """The agent was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{directory}/left.sock")
    assert _why(f"unix://{directory}/left.sock").startswith("nothing listens there")


@pytest.mark.usefixtures("kind")
def test_a_port_where_nothing_listens() -> None:
    """Bound by this test, so that nothing else takes it meanwhile."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        assert _why(f"127.0.0.1:{silent.getsockname()[1]}").startswith("nothing listens there")


@pytest.mark.usefixtures("kind")
def test_a_host_without_an_address() -> None:
    """A name that never has one."""
    assert _why("nowhere.invalid:1").startswith("the host name has no address")


@pytest.mark.usefixtures("kind")
def test_a_port_of_something_else() -> None:
    """A web server, say the agent's own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert _why(f"127.0.0.1:{server.getsockname()[1]}").startswith("something else listens there")
        thread.join(60)


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        ("UNAVAILABLE", "the agent is stopping; connect again", "the agent is stopping; connect again"),
        ("UNAVAILABLE", "Socket closed", "the agent ended the connection"),
        ("UNAVAILABLE", "ping timeout", "it does not answer in time"),
        ("UNIMPLEMENTED", "Method not found!", "what listens there does not know this call"),
        ("INVALID_ARGUMENT", "epoch is 1,\n the Hello said 2", "epoch is 1, the Hello said 2"),
        ("ABORTED", "", "the stream ended (ABORTED)"),
    ],
)
def test_other_ends(code: str, details: str, words: str) -> None:
    """What the agent says in words of its own stays."""
    assert explain_end(code, details).startswith(words)


def test_a_text_without_end_is_cut() -> None:
    """Whatever a peer sends, it is one line of the log."""
    assert len(explain_end("INTERNAL", "x\n" * 10_000)) <= 300
