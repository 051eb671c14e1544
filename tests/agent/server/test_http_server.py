"""The HTTP port."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import aiohttp
import pytest
from penstock.agent.errors import StateError
from penstock.agent.server.addresses import TcpAddress
from penstock.agent.server.http_server import Drained, HttpServer


class Agent:
    """What the server asks."""

    def __init__(self) -> None:
        self.health = ""
        self.readiness = ""
        self.replaying = False
        self.hold = None

    def render(self, accept: str) -> tuple[bytes, str]:
        """Answer with the Accept header."""
        if self.replaying:
            raise StateError("the log is being replayed")
        if self.hold is not None:
            return self.hold(accept)
        return f"for {accept}".encode(), "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
async def served():
    """Serve an agent; yields it and a way to GET."""
    agent = Agent()
    server = HttpServer(
        TcpAddress("127.0.0.1", 0), agent.render, lambda: agent.health, lambda: agent.readiness
    )
    await server.start()

    async def get(path, **headers):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{server.address}{path}", headers=headers) as got,
        ):
            return got.status, await got.text(), got.headers.get("Content-Type")

    yield agent, get
    await server.stop()


async def test_metrics_are_negotiated_by_accept(served):
    """The header goes to the renderer, its content type comes back."""
    _, get = served
    assert await get("/metrics", Accept="x/y") == (200, "for x/y", "text/plain; version=0.0.4; charset=utf-8")


async def test_a_scrape_does_not_wait_for_questions(served):
    """Those have the loop's threads, perhaps all of them, and for as long as a backup takes."""
    _, get = served
    release = threading.Event()
    questions = [asyncio.create_task(asyncio.to_thread(release.wait, 60)) for _ in range(64)]
    try:
        assert (await get("/metrics", Accept="x/y"))[0] == 200
        assert not any(question.done() for question in questions)
    finally:
        release.set()
        await asyncio.gather(*questions)


async def test_metrics_are_not_half_counted(served):
    """While the log is replayed a scrape fails: a counter that is too low would look like a reset."""
    agent, get = served
    agent.replaying = True
    assert (await get("/metrics"))[:2] == (503, "the log is being replayed\n")


@pytest.mark.parametrize(
    ("health", "readiness", "healthz", "readyz"),
    [
        ("", "", (200, "ok\n"), (200, "ok\n")),
        ("", "draining", (200, "ok\n"), (503, "draining\n")),
        ("dead", "", (503, "dead\n"), (503, "dead\n")),
    ],
)
async def test_health_and_readiness(served, health, readiness, healthz, readyz):
    """Alive is less than ready."""
    agent, get = served
    agent.health, agent.readiness = health, readiness
    assert (await get("/healthz"))[:2] == healthz
    assert (await get("/readyz"))[:2] == readyz


async def test_other_paths_are_not_there(served):
    """404."""
    _, get = served
    assert (await get("/"))[0] == 404


async def test_a_scrape_that_takes_too_long_is_given_up(served, monkeypatch):
    """It answers 503 and so does the next, which waits its turn: threads do not pile up. Then all is well again."""
    monkeypatch.setattr("penstock.agent.server.http_server._RENDER_DEADLINE", 0.05)
    agent, get = served
    begun, go_on, rendered = threading.Event(), threading.Event(), []

    def slow(accept):
        rendered.append(accept)
        begun.set()
        assert go_on.wait(60)
        return b"late", "text/plain"

    monkeypatch.setattr(agent, "hold", slow)
    for _ in range(2):
        status, text, _ = await get("/metrics")
        assert (status, text) == (503, "the metrics were not ready within 0.05 s; scrape less often\n")
        # The second waits for the first, which is on its thread by then.
        await asyncio.to_thread(begun.wait, 60)
    assert len(rendered) == 1
    monkeypatch.setattr("penstock.agent.server.http_server._RENDER_DEADLINE", 60.0)
    monkeypatch.setattr(agent, "hold", None)
    go_on.set()
    assert (await get("/metrics", Accept="x/y"))[:2] == (200, "for x/y")


async def exchange(address, data):
    """Send bytes, and return all that comes until the server ends the connection."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), 60)
        return b""
    finally:
        writer.close()


@pytest.fixture
async def bare():
    """Serve an agent; yields its address."""
    server = HttpServer(TcpAddress("127.0.0.1", 0), Agent().render, lambda: "", lambda: "")
    await server.start()
    yield server.address
    await server.stop()


GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\xff no HTTP at all\r\n\r\n",
        b"\0" * 100,
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
        GET + b"X: " + b"x" * 10_000 + b"\r\n\r\n",
        GET + b"X: y\r\n" * 10_000 + b"\r\n",
        GET + b"Content-Length: -5\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_request(bare, data, caplog):
    """They are refused and end their connection; the log says nothing, and the next request is served."""
    answer = await exchange(bare, data)
    assert answer.startswith(b"HTTP/1.0 400") or not answer
    assert caplog.records == []
    assert (await exchange(bare, GET + b"\r\n")).endswith(b"\r\n\r\nok\n")


async def test_a_connection_has_one_request(bare):
    """The connection is closed after the answer, so that idle clients hold none."""
    answer = await exchange(bare, GET + b"\r\n" + GET + b"\r\n")
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in answer


async def test_a_connection_that_dawdles_is_cut_off(monkeypatch):
    """Whether it says nothing or a byte now and then; others are served meanwhile."""
    monkeypatch.setattr("penstock.agent.server.http_server._CONNECTION_SECONDS", 2.0)
    server = HttpServer(TcpAddress("127.0.0.1", 0), Agent().render, lambda: "", lambda: "")
    await server.start()
    try:
        silent, slow, good = await asyncio.gather(
            exchange(server.address, b""),
            exchange(server.address, GET),
            exchange(server.address, GET + b"\r\n"),
        )
    finally:
        await server.stop()
    assert (silent, slow) == (b"", b"")
    assert good.startswith(b"HTTP/1.1 200")


SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def crowded(count, data):
    """Serve large metrics beside *count* clients that send *data* and read nothing; yields the address."""
    server = HttpServer(TcpAddress("127.0.0.1", 0), lambda _: (b"x" * (8 << 20), "text/plain"), str, str)
    await server.start()
    writers = []
    try:
        for _ in range(count):
            _, writer = await asyncio.open_connection(server.address.host, server.address.port, limit=1024)
            writers.append(writer)
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
        yield server.address
    finally:
        for writer in writers:
            writer.transport.abort()
        await server.stop()


@pytest.mark.parametrize(
    ("count", "most", "data"),
    [(300, 128, b""), (300, 128, GET), (40, 8, SCRAPE)],
    ids=["silent", "half a request", "reads nothing"],
)
async def test_health_has_room_beside_slow_clients(monkeypatch, count, most, data):
    """They are more than there is room for: both probes are answered, and so is a scrape that reads."""
    monkeypatch.setattr("penstock.agent.server.http_server._MAX_CONNECTIONS", most)
    async with crowded(count, data) as address:
        for path in (b"/healthz", b"/readyz", b"/healthz"):
            answer = await exchange(address, GET.replace(b"/healthz", path) + b"\r\n")
            assert answer.endswith(b"\r\n\r\nok\n")
        assert len(await exchange(address, SCRAPE)) > 8 << 20


async def test_a_request_that_was_sent_outlives_those_that_were_not(monkeypatch):
    """Connections that have asked nothing end first, whatever their age."""
    monkeypatch.setattr("penstock.agent.server.http_server._MAX_CONNECTIONS", 2)
    go_on = threading.Event()
    started = threading.Event()

    def render(accept):
        started.set()
        assert go_on.wait(60)
        return b"done", "text/plain"

    server = HttpServer(TcpAddress("127.0.0.1", 0), render, str, str)
    await server.start()
    try:
        scrape = asyncio.ensure_future(exchange(server.address, SCRAPE))
        assert await asyncio.to_thread(started.wait, 60)
        silent = [asyncio.ensure_future(exchange(server.address, GET)) for _ in range(3)]
        assert await asyncio.wait_for(asyncio.gather(*silent[:2]), 60) == [b"", b""]
        go_on.set()
        assert (await scrape).endswith(b"done")
        assert (await exchange(server.address, GET + b"\r\n")).startswith(b"HTTP/1.1 200")
        silent[2].cancel()
    finally:
        go_on.set()
        await server.stop()


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (Drained(True, ["engine 0 is drained"]), (200, "engine 0 is drained\n")),
        (Drained(False, ["a", "b"]), (503, "a\nb\n")),
        (Drained(None, ["no engine is known"]), (404, "no engine is known\n")),
        (StateError("the agent is starting"), (503, "the agent is starting\n")),
    ],
)
async def test_drained(found, answer):
    """200, 503 and 404 say whether engines can be ended; the name is passed on as it is."""
    asked = []

    async def drained(name: str) -> Drained:
        asked.append(name)
        if isinstance(found, StateError):
            raise found
        return found

    server = HttpServer(TcpAddress("127.0.0.1", 0), Agent().render, str, str, str, drained)
    await server.start()
    try:
        for query, name in (("", ""), ("?engine=a%2F0", "a/0")):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{server.address}/drained{query}") as got,
            ):
                assert (got.status, await got.text()) == answer
            assert asked.pop() == name
    finally:
        await server.stop()


async def test_drained_is_not_served_where_nobody_knows(served):
    """A relay has no engines of its own."""
    _, get = served
    assert (await get("/drained"))[0] == 404
