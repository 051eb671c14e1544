"""The feed for routers over real connections: one document for all, ETags, events, slow readers, certificates."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from penstock.agent.errors import ConfigError, ImpossibleError, StateError
from penstock.agent.server import AdminTls, TcpAddress, parse_allow_list
from penstock.agent.server.feed_server import MAX_CONNECTIONS, FeedContent, FeedServer, Pace
from penstock.agent.server.grpc_server import raise_file_limit
from penstock.agent.server.options import FeedSettings, feed_settings

from tests.support.agent.certificates import Authority
from tests.support.policy.feed import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.agent.certificates import Files

_LOOPBACK = FeedSettings(TcpAddress("127.0.0.1", 0), None)
# One document for a whole test, and one at each question.
_ONCE, _ALWAYS = Pace(least=3600.0), Pace(least=0.0, most=0.0)
_DEADLINE = aiohttp.ClientTimeout(total=60)


class Source:
    """Makes documents; what they say is *said*, and each has another time."""

    def __init__(self, said: str = "a") -> None:
        self.said = said
        self.made = 0
        self.problem: Exception | None = None

    async def content(self) -> FeedContent:
        """Return the next one."""
        self.made += 1
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        return FeedContent(
            json.dumps({"generated": self.made, "said": self.said}).encode(), self.said.encode()
        )


@asynccontextmanager
async def serving(
    source: Source, pace: Pace = _ALWAYS, settings: FeedSettings = _LOOPBACK
) -> AsyncIterator[FeedServer]:
    """Run a server."""
    server = FeedServer(settings, source.content, pace)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Return a client with as many connections as it likes."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=_DEADLINE) as session:
        yield session


async def test_an_etag_is_of_what_is_said(client: aiohttp.ClientSession) -> None:
    """The same words are the same bytes, whatever the time; 304 until there are others."""
    source = Source()
    async with serving(source) as server:
        async with client.get(server.url) as first:
            body, etag = await first.read(), first.headers["ETag"]
            assert (first.status, first.content_type, first.headers["Age"]) == (200, "application/json", "0")
        async with client.get(server.url) as again:
            assert (await again.read(), again.headers["ETag"]) == (body, etag)
        for header in (etag, f'"x", W/{etag}'):
            async with client.get(server.url, headers={"If-None-Match": header}) as same:
                assert (same.status, same.headers["ETag"], await same.read()) == (304, etag, b"")
        source.said = "b"
        async with client.get(server.url, headers={"If-None-Match": etag}) as other:
            assert (other.status, (await other.json())["said"]) == (200, "b")
            assert other.headers["ETag"] != etag
        async with client.head(server.url) as head:
            assert (head.status, await head.read()) == (200, b"")
            assert head.headers["Content-Length"] == other.headers["Content-Length"]
    assert source.made > 3


async def test_other_paths_methods_and_names(client: aiohttp.ClientSession) -> None:
    """404, 405 with what is allowed, 403 for a name that points here from elsewhere."""
    async with serving(Source()) as server:
        async with client.get(server.url + "/x") as other:
            assert (other.status, "error" in await other.json()) == (404, True)
        async with client.post(server.url, data=b"{}") as post:
            assert (post.status, post.headers["Allow"]) == (405, "GET,HEAD")
        async with client.get(server.url, headers={"Host": "evil.example"}) as named:
            assert (named.status, "evil.example" in (await named.json())["error"]) == (403, True)
        async with client.get(server.url, headers={"Host": "localhost:1"}) as named:
            assert named.status == 200


@pytest.mark.parametrize("problem", [ImpossibleError("no agent answers"), ValueError("a secret")])
async def test_a_state_that_is_not_known_is_no_document(
    client: aiohttp.ClientSession, problem: Exception
) -> None:
    """Not even the last one; a stream ends, and its reader is told when it comes back."""
    source = Source()
    async with serving(source, Pace(least=0.01)) as server:
        async with client.get(server.url, headers={"Accept": "text/event-stream"}) as stream:
            assert await stream.content.readline() == b"event: peers\n"
            source.problem = problem
            rest = await stream.read()
            assert rest.splitlines()[-2].startswith(b": ")
        async with client.get(server.url) as response:
            said = await response.json()
        assert response.status == 503
        assert said["error"].startswith("the state of peers is not known now: ")
        assert "secret" not in said["error"]
        source.problem = None


async def test_a_thousand_poll_one_document(client: aiohttp.ClientSession) -> None:
    """All of them get it, and it is made once; then a thousand get 304."""
    raise_file_limit()
    source = Source()
    async with serving(source, _ONCE) as server:

        async def poll(etag: str = "") -> tuple[int, str]:
            async with client.get(server.url, headers={"If-None-Match": etag}) as response:
                await response.read()
                return response.status, response.headers["ETag"]

        first = await asyncio.gather(*(poll() for _ in range(MAX_CONNECTIONS)))
        assert {status for status, _ in first} == {200}
        (etag,) = {etag for _, etag in first}
        again = await asyncio.gather(*(poll(etag) for _ in range(MAX_CONNECTIONS)))
        assert set(again) == {(304, etag)}
    assert source.made == 1


async def _event(stream: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the fields of the next event."""
    lines: list[str] = []
    while not lines or not lines[-1].startswith("data"):
        line = (await stream.content.readline()).decode()
        assert line, "the stream has ended"
        lines.append(line.rstrip("\n"))
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))


async def test_a_stream_has_an_event_at_each_change(client: aiohttp.ClientSession) -> None:
    """And comments in between; one that comes back gets no event that it has had."""
    source = Source()
    async with serving(source, Pace(least=0.01, comment=0.01)) as server:
        async with client.get(server.url, headers={"Accept": "text/event-stream"}) as stream:
            assert stream.content_type == "text/event-stream"
            first = await _event(stream)
            assert (first["event"], json.loads(first["data"])["said"]) == ("peers", "a")
            assert await stream.content.readline() == b"\n"
            assert await stream.content.readline() == b": nothing has changed\n"
            source.said = "b"
            second = await _event(stream)
            assert json.loads(second["data"])["said"] == "b"
        async with client.get(server.url) as polled:
            assert polled.headers["ETag"] == second["id"]
        headers = {"Accept": "text/event-stream", "Last-Event-ID": second["id"]}
        async with client.get(server.url, headers=headers) as stream:
            assert await stream.content.readline() == b": nothing has changed\n"
            source.said = "c"
            assert json.loads((await _event(stream))["data"])["said"] == "c"


async def test_nothing_is_made_while_nobody_reads(client: aiohttp.ClientSession) -> None:
    """The last stream that ends ends the work."""
    source = Source()
    async with serving(source, Pace(least=0.01, comment=0.01)) as server:
        assert source.made == 0
        async with client.get(server.url, headers={"Accept": "text/event-stream"}) as stream:
            await _event(stream)
        await eventually(lambda: server._following is None, "nobody follows")
        made = source.made
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert source.made == made


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_reader_that_does_not_read_is_cut_off(accept: str) -> None:
    """What it does not take waits for no more than its time."""
    source = Source("x" * (64 << 20))
    async with serving(source, Pace(least=3600.0, write=0.2)) as server:
        loop = asyncio.get_running_loop()
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        with reader:
            await loop.sock_connect(reader, (server.address.host, server.address.port))
            request = f"GET /v1/peers HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
            await loop.sock_sendall(reader, request.encode())
            await eventually(lambda: source.made and not _connections(server), "it is cut off")


def _connections(server: FeedServer) -> int:
    assert server._runner.server is not None
    return len(server._runner.server.connections)


async def test_one_stream_too_many_is_told(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may poll."""
    monkeypatch.setattr("penstock.agent.server.feed_server.MAX_CONNECTIONS", 1)
    async with serving(Source()) as server:
        headers = {"Accept": "text/event-stream"}
        async with client.get(server.url, headers=headers) as first:
            await _event(first)
            async with client.get(server.url, headers=headers) as second:
                assert second.status == 503
            async with client.get(server.url) as polled:
                assert polled.status == 200


async def test_an_address_that_is_taken() -> None:
    """It is not served by somebody else in silence."""
    async with serving(Source()) as server:
        other = FeedServer(FeedSettings(server.address, None), Source().content)
        with pytest.raises(StateError, match="it is in use; give another address, or off"):
            await other.start()


def _tls(authority: Authority) -> AdminTls:
    served = authority.issue("127.0.0.1", file="server")
    return AdminTls(served.cert, served.key, authority.cert, parse_allow_list("router=read"))


async def test_only_names_of_the_list_read_it(tmp_path: Path) -> None:
    """By the certificates and the list of the admin service; without one there is no connection."""
    authority, stranger = Authority(tmp_path / "pki"), Authority(tmp_path / "other")

    def context(files: Files | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=authority.cert)
        if files is not None:
            made.load_cert_chain(files.cert, files.key)
        return made

    settings = FeedSettings(TcpAddress("127.0.0.1", 0), _tls(authority))
    async with (
        serving(Source(), settings=settings) as server,
        aiohttp.ClientSession(timeout=_DEADLINE) as session,
    ):
        assert server.url.startswith("https://")
        for name, status in (("router", 200), ("else", 403)):
            files = authority.issue(f"{name}.example", common_name=name)
            async with session.get(server.url, ssl=context(files)) as response:
                assert response.status == status
        for shown in (None, stranger.issue("router.example", common_name="router")):
            with pytest.raises(aiohttp.ClientError):
                await session.get(server.url, ssl=context(shown))


@pytest.mark.parametrize(
    ("address", "with_tls", "served"),
    [
        ("127.0.0.1", False, "plain"),
        ("::1", True, "plain"),
        ("0.0.0.0", True, "tls"),
        ("0.0.0.0", False, "refused"),
    ],
)
def test_strangers_are_kept_out_at_the_start(
    tmp_path: Path, address: str, *, with_tls: bool, served: str
) -> None:
    """Beyond loopback it takes the certificates of the admin service."""
    tls = _tls(Authority(tmp_path / "pki")) if with_tls else None
    values = {"feed": TcpAddress(address, 9469)}
    if served == "refused":
        with pytest.raises(ConfigError, match="can be reached from other machines"):
            feed_settings(values, tls)
        return
    found = feed_settings(values, tls)
    assert found is not None
    assert found.tls is (tls if served == "tls" else None)
    assert feed_settings({"feed": None}, tls) is None
