"""A server of the page that says what a test has it say: the page's own files, and one stream a tab."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "agent" / "penstock" / "agent" / "page" / "static"
# What docs/reference/page.md promises of each answer.
CSP = "default-src 'self'"
_STOP_SECONDS = 10

Message = tuple[str, Any, str]
"""An event's name, its data, and its id, which may be empty."""


class ScriptedServer:
    """Runs in a thread of its own; the methods may be called from the test's."""

    def __init__(self) -> None:
        self.opening: list[Message] = []
        """What each new stream begins with."""
        self.streams: list[tuple[str, str]] = []
        """Of each stream that was opened: ``?after=`` and ``Last-Event-ID``."""
        self.details: dict[str, Any] = {}
        """Answers by path, below ``/api/``."""
        self.writes: list[tuple[str, dict[str, Any], str]] = []
        """Of each write: its kind, its body, and the header that keeps other sites out."""
        self.answers: dict[str, dict[str, Any]] = {}
        """What answers to writes of a kind have, or have instead."""
        self.refusals: dict[str, str] = {}
        """Sentences with which writes of a kind are refused."""
        self._open: set[asyncio.Queue[Message | None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Listen; on the same port as before, if there was one."""
        self._run(self._start)

    def stop(self) -> None:
        """End all streams and listen no more."""
        self._run(self._stop)

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        self._loop.close()

    def say(self, event: str, data: Any, position: str = "") -> None:
        """Send a message on all streams that are open."""
        self._loop.call_soon_threadsafe(self._put, (event, data, position))

    def _put(self, message: Message | None) -> None:
        for queue in self._open:
            queue.put_nowait(message)

    def _run(self, work: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(_STOP_SECONDS)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/", self._document)
        app.router.add_static("/static", STATIC)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/{name}", self._detail)
        app.router.add_post("/api/write/{kind}", self._write)
        app.on_response_prepare.append(_with_policy)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        self._put(None)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _document(self, _request: web.Request) -> web.FileResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self.streams.append((request.query.get("after", ""), request.headers.get("Last-Event-ID", "")))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        queue: asyncio.Queue[Message | None] = asyncio.Queue()
        for first in self.opening:
            queue.put_nowait(first)
        self._open.add(queue)
        try:
            while (message := await queue.get()) is not None:
                await response.write(_encoded(message))
        except ConnectionError:
            pass  # the tab has gone
        finally:
            self._open.discard(queue)
        return response

    async def _detail(self, request: web.Request) -> web.Response:
        answer = self.details.get(request.match_info["name"])
        if answer is None:
            return web.json_response({"error": "There is nothing of that name."}, status=404)
        return web.json_response(answer)

    async def _write(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.writes.append((request.match_info["kind"], body, request.headers.get("X-Penstock", "")))
        kind = request.match_info["kind"]
        if kind in self.refusals:
            return web.json_response({"error": self.refusals[kind]}, status=409)
        what = "would be" if body.get("dryRun") else "is"
        return web.json_response(
            {
                "sentence": f"2 engines {what} changed",
                "sentences": [],
                "sections": [],
                "command": "agentctl pause",
            }
            | self.answers.get(kind, {})
        )


async def _with_policy(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Content-Security-Policy"] = CSP


def _encoded(message: Message) -> bytes:
    event, data, position = message
    lines = [f"event: {event}", *([f"id: {position}"] if position else []), f"data: {json.dumps(data)}"]
    return ("\n".join(lines) + "\n\n").encode()
