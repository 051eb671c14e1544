"""API servers for routers: ``python -m tests.support.routers.backend_process NAME=PORT…``, a process for each.

vLLM's own application and launcher, with Penstock's plugin, so that the readiness is what a router meets. No engine is
behind them: what a router sends is counted, and answered by a stand-in.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

from penstock.instrumentation.plugin import register
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from vllm.v1.engine.async_llm import AsyncLLM

from tests.support.engine.api_application import application, build_no_engine, client, launcher

MODEL = "tiny"


class StandIn:
    """Answers requests, as it was told last, and notes them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._requests: list[Any] = []
        self._failure: dict[str, Any] | None = None

    def routes(self) -> list[Route]:
        """Return its paths: vLLM's, of which a router makes use, and its own for the test."""
        return [
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/stand-in/requests", self._noted),
            Route("/stand-in/failure", self._fail, methods=["POST"]),
        ]

    async def _complete(self, request: Any) -> Response:
        body = await request.json()
        self._requests.append(body)
        if self._failure is not None:
            return JSONResponse(self._failure["body"], 503, self._failure["headers"])
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": self._name}
        else:
            choice["text"] = self._name
        return JSONResponse(
            {
                "id": "cmpl-1",
                "object": "chat.completion" if "messages" in body else "text_completion",
                "created": 1,
                "model": MODEL,
                "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                "kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": self._name},
            }
        )

    async def _models(self, _: Any) -> Response:
        model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 4096}
        return JSONResponse({"object": "list", "data": [model]})

    async def _noted(self, _: Any) -> Response:
        return JSONResponse(self._requests)

    async def _fail(self, request: Any) -> Response:
        self._failure = await request.json()
        return Response()


async def _serve(name: str, port: int) -> None:
    app = application(engine=client())
    app.router.routes[:0] = StandIn(name).routes()
    listening = socket.create_server(("127.0.0.1", port))
    await (await launcher.serve_http(app, sock=listening, host="127.0.0.1", port=port, log_level="error"))


def main() -> None:
    """Fork a process for each server; each has its own link to the agent."""
    AsyncLLM.__init__ = build_no_engine
    for word in sys.argv[1:]:
        name, _, port = word.partition("=")
        if os.fork() == 0:
            os.environ["PENSTOCK_SERVER"] = name
            register()
            asyncio.run(_serve(name, int(port)))
            os._exit(0)
    for _ in sys.argv[1:]:
        os.wait()


if __name__ == "__main__":
    main()
