"""The readiness, on vLLM's own application and launcher over TCP; the engine behind them is a stand-in."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import socket
import warnings
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.core.rotation import Rotation
from penstock.instrumentation.hooks import fit_of, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.api_server import TraceContextHook
from penstock.instrumentation.vllm.readiness import ReadinessHook

from tests.support.engine.api_application import application, build_no_engine, client, launcher

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from fastapi import FastAPI
    from vllm.v1.engine.async_llm import AsyncLLM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.engine.recorder import Recorder

READY = "/health?penstock=ready"


class Clock:
    """Seconds that only a test counts on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Read it."""
        return self.now


@pytest.fixture
def clock(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let the order of this process pass by the clock that is returned."""
    del recorder
    found = Clock()
    monkeypatch.setattr(runtime.session, "rotation", Rotation(found))
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> list[str]:
    """Return what this process was at each start of its exporter."""
    del recorder
    found: list[str] = []
    monkeypatch.setattr(runtime, "start", lambda: found.append(runtime.identity.process))
    return found


@pytest.fixture(autouse=True)
def hook(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceContextHook]:
    """Install the API server's hook over an AsyncLLM that builds no engine."""
    del clock
    monkeypatch.setattr(AsyncLLM, "__init__", build_no_engine)
    found = TraceContextHook()
    found.install()
    # vLLM's launcher gives the root logger the server's level.
    root = logging.getLogger()
    level = root.level
    yield found
    root.setLevel(level)
    found.uninstall()
    registry._states.clear()
    assert AsyncLLM.__init__ is build_no_engine
    assert FastAPI.build_middleware_stack.__module__ == "fastapi.applications"


@asynccontextmanager
async def serving(*arguments: str, engine: Any = None) -> AsyncIterator[httpx.AsyncClient]:
    """Serve vLLM's application by vLLM's launcher, with these arguments of its command line."""
    app = application(*arguments, engine=engine or client())
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    serve = asyncio.create_task(
        launcher.serve_http(app, sock=listening, host="127.0.0.1", port=port, log_level="error")
    )
    try:
        while not getattr(getattr(app.state, "server", None), "started", False):
            assert not serve.done(), serve
            await asyncio.sleep(0.005)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as found:
            yield found
    finally:
        app.state.server.should_exit = True
        await (await serve)
        listening.close()


async def codes(server: httpx.AsyncClient, *paths: str) -> list[int]:
    """Return the status of the answers to GET."""
    return [(await server.get(path)).status_code for path in paths]


async def test_an_order_answers_503_until_it_ends(clock: Clock) -> None:
    """It says for how long, in the body and to whom may try again; liveness stays."""
    async with serving() as server:
        assert await codes(server, READY, "/health") == [200, 200]
        runtime.session.rotation.out_for(60)
        clock.now += 30.5
        answer = await server.get(READY)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.content) == {
            "ready": False,
            "reason": "out of rotation by order, for 30 s unless renewed",
        }
        assert await codes(server, "/health", "/version") == [200, 200]
        clock.now += 29.5
        assert await codes(server, READY) == [200]
        runtime.session.rotation.out_for(60)
        assert await codes(server, READY) == [503]
        runtime.session.rotation.out_for(0)
        assert await codes(server, READY) == [200]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /health?penstock=ready&x", 503),
        ("GET /health?x=1&penstock=ready", 503),
        ("GET /health?penstock=other&penstock=ready", 503),
        ("GET /health?penstock=other", 200),
        ("GET /health?penstock=readyish", 200),
        ("GET /health?xpenstock=ready", 200),
        ("GET /health?penstock", 200),
        ("GET /health?", 200),
        ("HEAD /health?penstock=ready", 405),
        ("POST /health?penstock=ready", 405),
        ("GET /version?penstock=ready", 200),
        ("GET /other/health?penstock=ready", 404),
        ("GET /ping?penstock=ready", 200),
    ],
)
async def test_which_requests_ask_for_the_readiness(request_line: str, status: int) -> None:
    """All others get vLLM's own answer, also while an order is in force."""
    runtime.session.rotation.out_for(60)
    method, path = request_line.split()
    async with serving() as server:
        assert (await server.request(method, path)).status_code == status


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (("--root-path", "/tiny"), (READY, f"/tiny{READY}")),
        (("--api-key", "secret"), (READY,)),
        (("--disable-fastapi-docs", "--enable-request-id-headers"), (READY,)),
    ],
)
async def test_however_vllm_is_started(arguments: tuple[str, ...], paths: tuple[str, ...]) -> None:
    """Its middlewares and its root path make no difference."""
    async with serving(*arguments) as server:
        assert await codes(server, *paths) == [200] * len(paths)
        runtime.session.rotation.out_for(60)
        assert await codes(server, *paths) == [503] * len(paths)
        assert await codes(server, *(path.partition("?")[0] for path in paths)) == [200] * len(paths)


async def test_an_engine_that_is_dead_is_not_ready() -> None:
    """VLLM's own answer is passed on."""
    engine = client()
    async with serving(engine=engine) as server:
        engine.engine_core.resources.engine_dead = True
        assert await codes(server, READY, "/health") == [503, 503]
        engine.engine_core.resources.engine_dead = False
        assert await codes(server, READY, "/health") == [200, 200]


async def test_the_first_question_announces_the_process(started: list[str]) -> None:
    """So that an idle server connects to its agent; liveness alone does not."""
    async with serving() as server:
        assert await codes(server, "/health") == [200]
        assert (started, runtime.identity.process) == ([], "")
        assert await codes(server, READY, READY) == [200, 200]
        assert (started, runtime.identity.process, runtime.identity.model) == (["api"], "api", "tiny")


async def test_the_kill_switch(started: list[str]) -> None:
    """While it holds vLLM answers, and nothing is announced."""
    runtime.session.rotation.out_for(60)
    runtime.pause("test", paused=True)
    try:
        async with serving() as server:
            assert await codes(server, READY) == [200]
            assert started == []
            runtime.pause("test", paused=False)
            assert await codes(server, READY) == [503]
    finally:
        runtime.pause("test", paused=False)


async def test_uninstalled(hook: TraceContextHook) -> None:
    """An application that is being served answers as vLLM does from then on."""
    runtime.session.rotation.out_for(60)
    async with serving() as server:
        assert await codes(server, READY) == [503]
        hook.uninstall()
        assert await codes(server, READY) == [200]


async def test_without_penstock(hook: TraceContextHook) -> None:
    """VLLM ignores the query."""
    hook.uninstall()
    runtime.session.rotation.out_for(60)
    async with serving() as server:
        assert await codes(server, READY) == [200]


async def test_an_error_of_ours_leaves_the_answer_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted."""

    def fail(*_: Any) -> None:
        raise ValueError("no")

    runtime.session.rotation.out_for(60)
    async with serving() as server:
        monkeypatch.setattr(guard, "raising", False)
        monkeypatch.setattr(ReadinessHook, "seconds_out", fail)
        assert await codes(server, READY) == [200]
    assert guard.counts.drain() == {("readiness", "ValueError"): 1}


async def test_an_application_of_others_stays_as_it_is() -> None:
    """Workers of connectors serve such ones; also one that has no engine, as vLLM's that only renders prompts."""
    client()
    runtime.session.rotation.out_for(60)
    app = FastAPI()
    app.get("/health")(lambda: "well")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://other") as server:
        assert await codes(server, READY) == [200]
        app.state.engine_client = None
        assert await codes(server, READY) == [200]


def test_only_an_api_server_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that uses vLLM's engine without its server does not import what a server needs."""
    monkeypatch.setattr("penstock.instrumentation.vllm.readiness._LAUNCHERS", ())
    client()
    assert "readiness" not in {each.name for each in registry.report()}


def test_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name."""
    settings: Any = runtime.settings
    monkeypatch.setattr(
        runtime.session, "settings", SimpleNamespace(hooks_disabled=("readiness",), labels={})
    )
    client()
    monkeypatch.setattr(runtime.session, "settings", settings)
    (state,) = [each for each in registry.report() if each.name == "readiness"]
    assert (state.installed, state.reason) == (False, "disabled by PENSTOCK_HOOKS_DISABLED")


def test_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits this vLLM; without its health check it is left out."""
    assert fit_of(ReadinessHook()).unmet == ""
    health = importlib.import_module("vllm.entrypoints.serve.instrumentator.health")
    monkeypatch.setattr(health, "router", SimpleNamespace(routes=[]))
    assert fit_of(ReadinessHook()).unmet == "vLLM's health check is not at /health"
