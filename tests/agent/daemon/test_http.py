"""The HTTP port."""

from __future__ import annotations

import threading

import aiohttp
import pytest
from penstock.agent.addresses import TcpAddress
from penstock.agent.errors import StateError
from penstock.agent.http import HttpServer


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
    monkeypatch.setattr("penstock.agent.http._RENDER_DEADLINE", 0.05)
    agent, get = served
    go_on, rendered = threading.Event(), []

    def slow(accept):
        rendered.append(accept)
        assert go_on.wait(10)
        return b"late", "text/plain"

    monkeypatch.setattr(agent, "hold", slow)
    for _ in range(2):
        status, text, _ = await get("/metrics")
        assert (status, text) == (503, "the metrics were not ready within 0.05 s; scrape less often\n")
    assert len(rendered) == 1
    monkeypatch.setattr("penstock.agent.http._RENDER_DEADLINE", 10.0)
    monkeypatch.setattr(agent, "hold", None)
    go_on.set()
    assert (await get("/metrics", Accept="x/y"))[:2] == (200, "for x/y")
