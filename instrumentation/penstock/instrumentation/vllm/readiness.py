"""The API server's readiness: ``GET /health?penstock=ready`` answers 503 while an order takes the server out of rotation.

Else vLLM answers it, as it answers ``/health``, which stays the liveness. vLLM ignores the query where Penstock is not there.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Patch, Requirement
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from penstock.instrumentation.hooks import Need

    Scope = MutableMapping[str, Any]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Any, Send], Awaitable[None]]

_GUARD = guard("readiness")
_PATH: Final = "/health"
_QUERY: Final = b"penstock=ready"
# vLLM's API server imports one of them, an older one the second; no other process of an engine does.
_LAUNCHERS: Final = ("vllm.entrypoints.launchers.launcher", "vllm.entrypoints.launcher")


@dataclass(frozen=True)
class _Route:
    """That vLLM has the path.

    Attributes:
        router: of vLLM's health check.

    """

    router: Any

    def unmet(self) -> str:
        """Return that it has not; empty if it has."""
        found = any(getattr(route, "path", "") == _PATH for route in self.router.routes)
        return "" if found else f"vLLM's health check is not at {_PATH}"


class ReadinessHook:
    """Puts a middleware in front of the application of vLLM's API server, whenever its middlewares are put together.

    vLLM does that before it serves, and before its launcher sees the application: no middleware can be added there. To be
    installed in the API process only, before vLLM builds the application: what it patches may be imported nowhere else.
    """

    name = "readiness"
    component = c.COMPONENT_FRONTEND

    def __init__(self, announce: Callable[[Any], None] = lambda _: None) -> None:
        """Make the hook; each question for the readiness calls *announce* with vLLM's engine client."""
        self._announce = announce
        self._patch = Patch()
        self._installed = False

    @staticmethod
    def is_used() -> bool:
        """Return whether this process is an API server of vLLM's."""
        return any(name in sys.modules for name in _LAUNCHERS)

    def requires(self) -> Iterable[Need]:
        """Return the method that is patched, and vLLM's health check."""
        from fastapi.applications import FastAPI
        from vllm.entrypoints.serve.instrumentator.health import router

        return [Requirement(FastAPI, "build_middleware_stack"), _Route(router)]

    def install(self) -> None:
        """Patch it."""
        from fastapi.applications import FastAPI
        from starlette.middleware import Middleware

        build = FastAPI.build_middleware_stack

        @functools.wraps(build)
        def with_readiness(app: Any) -> Any:
            with _GUARD:
                if all(each.cls is not _Readiness for each in app.user_middleware):
                    app.user_middleware.insert(0, Middleware(_Readiness, hook=self))
            return build(app)

        self._patch.set(FastAPI, "build_middleware_stack", with_readiness)
        self._installed = True

    def uninstall(self) -> None:
        """Restore it; applications that have the middleware answer as vLLM does."""
        self._installed = False
        self._patch.undo()

    def seconds_out(self, scope: Scope) -> float:
        """Return for how many seconds the request of *scope* is to be answered that this server is out of rotation; 0: vLLM answers."""
        if not self._installed or not runtime.active or scope["type"] != "http" or scope["method"] != "GET":
            return 0.0
        # Behind a proxy vLLM is also asked with its --root-path in front.
        if scope["path"] not in (_PATH, scope.get("root_path", "") + _PATH):
            return 0.0
        if _QUERY not in scope["query_string"].split(b"&"):
            return 0.0
        # Other applications of the process have none, and a server that only renders prompts has None.
        engine = getattr(scope["app"].state, "engine_client", None)
        if engine is None:
            return 0.0
        self._announce(engine)
        return runtime.session.seconds_out_of_rotation


class _Readiness:
    """The middleware. It makes no task and no coroutine for a request that is not about the readiness."""

    def __init__(self, app: App, hook: ReadinessHook) -> None:
        self._app = app
        self._hook = hook

    def __call__(self, scope: Scope, receive: Any, send: Send) -> Awaitable[None]:
        query = scope.get("query_string")
        if query and _QUERY in query:
            seconds = 0.0
            with _GUARD:
                seconds = self._hook.seconds_out(scope)
            if seconds:
                return _refuse(math.ceil(seconds), send)
        return self._app(scope, receive, send)


async def _refuse(seconds: int, send: Send) -> None:
    reason = f"out of rotation by order, for {seconds} s unless renewed"
    body = json.dumps({"ready": False, "reason": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % seconds),
    ]
    await send(
        {"type": "http.response.start", "status": HTTPStatus.SERVICE_UNAVAILABLE.value, "headers": headers}
    )
    await send({"type": "http.response.body", "body": body})
