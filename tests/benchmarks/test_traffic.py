"""The client of the engine's benchmark, against a real HTTP server that streams."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from benchmarks.load.traffic import Latencies, Load, Route, drive, run_under_load


class Streams:
    """Answers as vLLM does, one part after the other, each when the one before has been flushed."""

    def __init__(self, *, status: int = 200, short: int = 0) -> None:
        self.bodies: list[dict] = []
        self.most = 0
        self._status = status
        self._short = short
        self._open = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one completion."""
        body = await request.json()
        self.bodies.append(body)
        if self._status != 200:
            return web.Response(status=self._status, text="no room")
        if not body.get("stream"):
            return web.json_response({"kv_transfer_params": {"remote_request_id": len(self.bodies)}})
        self._open += 1
        self.most = max(self.most, self._open)
        answer = web.StreamResponse()
        await answer.prepare(request)
        tokens = body["max_tokens"] - self._short
        for _ in range(tokens):
            await answer.write(b'data: {"choices": [{"text": "x"}]}\n\n')
            await asyncio.sleep(0.001)
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}).encode()
        await answer.write(b"data: " + usage + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        self._open -= 1
        return answer


@contextmanager
def serving(handler):
    """Serve on a loop of its own; yields the URL."""
    loop = asyncio.new_event_loop()
    application = web.Application()
    application.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(application)

    async def start() -> str:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


LOAD = Load("load", clients=3, requests=7, prompt=5, output=4)


def test_a_turn_sends_its_load_and_sees_all_of_it():
    """No more at a time than there are clients; each answer has a first part."""
    streams = Streams()
    with serving(streams.serve) as url:
        seen = drive(Route(url), LOAD, seed=1)
    assert len(streams.bodies) == len(seen.first) == 7
    assert streams.most <= 3
    assert 0 < len(seen.gaps) <= 7 * 4
    assert 0 < seen.gap(50) <= seen.gap(99)


def test_a_seed_names_the_prompts():
    """Who is compared gets the same ones, and the next round others."""
    prompts = []
    for seed in (1, 1, 2):
        streams = Streams()
        with serving(streams.serve) as url:
            drive(Route(url), LOAD, seed)
        prompts.append(sorted(body["prompt"] for body in streams.bodies))
    assert prompts[0] == prompts[1] != prompts[2]
    assert {len(prompt) for prompt in prompts[0]} == {5}


def test_answers_of_a_load_that_varies_are_of_different_lengths():
    """So that those that begin together do not end together; a seed names them, too."""
    lengths = []
    for seed in (1, 1):
        streams = Streams()
        with serving(streams.serve) as url:
            drive(Route(url), replace(LOAD, output=8, varies=True), seed)
        lengths.append(sorted(body["max_tokens"] for body in streams.bodies))
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 1
    assert set(lengths[0]) <= set(range(4, 13))


def test_a_route_over_prefill_hands_its_parameters_on():
    """As a router does."""
    prefill, decode = Streams(), Streams()
    with serving(prefill.serve) as first, serving(decode.serve) as second:
        drive(Route(second, first), LOAD, seed=1)
    assert {body["max_tokens"] for body in prefill.bodies} == {1}
    handed = sorted(body["kv_transfer_params"]["remote_request_id"] for body in decode.bodies)
    assert handed == list(range(1, 8))


@pytest.mark.parametrize(
    ("streams", "match"),
    [
        (Streams(status=503), "answered 503 instead of 200: no room"),
        (Streams(short=1), "3 tokens instead of 4"),
    ],
)
def test_a_request_that_is_not_served_ends_the_turn(streams, match):
    """A turn that served less would look fast."""
    with serving(streams.serve) as url, pytest.raises(RuntimeError, match=match):
        drive(Route(url), LOAD, seed=1)


def test_traffic_goes_on_while_something_else_is_done():
    """At the full number of clients until that has ended, and then every request that was begun."""
    streams = Streams()
    enough = threading.Event()

    def work() -> None:
        assert enough.wait(60)

    async def count(request: web.Request) -> web.StreamResponse:
        if len(streams.bodies) > 2 * LOAD.requests:
            enough.set()
        return await streams.serve(request)

    with serving(count) as url:
        run_under_load(Route(url), LOAD, work)
    assert len(streams.bodies) > 2 * LOAD.requests
    assert (streams.most, streams._open) == (LOAD.clients, 0)


def test_gaps_of_answers_that_came_at_once():
    """A client that was starved has seen none; that is no error, and no zero to divide by."""
    assert Latencies().gap(50) == Latencies().gap(99) == pytest.approx(0.1)
    assert Latencies(gaps=[0.001, 0.003]).gap(50) == pytest.approx(2.0)
