"""The API server's hook: keeps the caller's trace context, and installs what only the API process needs.

vLLM drops it in ``AsyncLLM.add_request`` unless ``--otlp-traces-endpoint`` is set. With that option vLLM passes the context on itself,
and the hook does nothing.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Patch, Requirement, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.naming import engine_identity
from penstock.instrumentation.vllm.readiness import ReadinessHook
from penstock.instrumentation.vllm.recovery import ClientErrorHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.hooks import Hook

_GUARD = guard("trace_context")

# The headers of the present call of add_request; a task that it starts inherits them.
_CONTEXT: ContextVar[Mapping[str, str] | None] = ContextVar("penstock_trace_headers", default=None)


class TraceContextHook:
    """Passes the trace headers in vLLM's own field of the request, past the code that drops them.

    ``add_request`` is called without them, so that it does not warn, and ``assign_request_id``, which it
    calls for each request that it makes, sets them on the request.

    The readiness is installed once vLLM has built the client of its engines, which is before it builds its server.
    """

    name = "trace_context"
    component = c.COMPONENT_FRONTEND

    def __init__(self) -> None:
        self._patch = Patch()
        self._announced = False

    def requires(self) -> Iterable[Requirement]:
        """Return the methods that are patched."""
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.input_processor import InputProcessor

        return [
            Requirement(AsyncLLM, "__init__", ("vllm_config",)),
            Requirement(AsyncLLM, "add_request", ("trace_headers",)),
            Requirement(InputProcessor, "assign_request_id", ("request",)),
        ]

    def install(self) -> None:
        """Patch them."""
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.input_processor import InputProcessor

        init, add_request = AsyncLLM.__init__, AsyncLLM.add_request
        assign_request_id = InputProcessor.assign_request_id

        @functools.wraps(init)
        def connect(*args: Any, **kwargs: Any) -> None:
            init(*args, **kwargs)
            if ReadinessHook.is_used():
                self._install_late(ReadinessHook(self._announce))

        @functools.wraps(add_request)
        async def keep(engine: Any, *args: Any, **kwargs: Any) -> Any:
            headers = None
            if runtime.active:
                with _GUARD:
                    self._announce(engine)
                    if engine.observability_config.otlp_traces_endpoint is None:
                        headers = kwargs.get("trace_headers")
            if not headers:
                return await add_request(engine, *args, **kwargs)
            token = _CONTEXT.set(headers)
            try:
                return await add_request(engine, *args, **{**kwargs, "trace_headers": None})
            finally:
                # A coroutine that is finalized in another task's context must not raise because of the hook.
                with _GUARD:
                    _CONTEXT.reset(token)

        @functools.wraps(assign_request_id)
        def attach(*args: Any, **kwargs: Any) -> Any:
            result = assign_request_id(*args, **kwargs)
            headers = _CONTEXT.get()
            if headers:
                with _GUARD:
                    request = kwargs.get("request", args[-1])
                    if request.trace_headers is None:
                        request.trace_headers = headers
            return result

        self._patch.set(AsyncLLM, "__init__", connect)
        self._patch.set(AsyncLLM, "add_request", keep)
        self._patch.set(InputProcessor, "assign_request_id", attach)

    def uninstall(self) -> None:
        """Restore them, and uninstall what was installed late."""
        registry.uninstall(ClientErrorHook.name)
        registry.uninstall(ReadinessHook.name)
        self._patch.undo()

    def _announce(self, engine: Any) -> None:
        """Identify the process once, and install what only requests need: at the first, or the first question for its readiness.

        Engines are forked before that, and by then vLLM itself has imported its servers.
        """
        if self._announced:
            return
        self._announced = True
        runtime.identify(
            process="api",
            model=engine_identity.model_name(engine.vllm_config),
            vllm_version=engine_identity.vllm_version(),
        )
        self._install_late(ClientErrorHook())
        engine_identity.excuse_hooks(engine.vllm_config)
        runtime.start()

    @staticmethod
    def _install_late(hook: Hook) -> None:
        settings = runtime.settings
        registry.install(hook, settings.hooks_disabled if settings is not None else ())
