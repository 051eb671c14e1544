"""The API server's hook: keeps the caller's trace context.

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
from penstock.instrumentation.vllm.recovery import ClientErrorHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_GUARD = guard("trace_context")

# The headers of the present call of add_request; a task that it starts inherits them.
_CONTEXT: ContextVar[Mapping[str, str] | None] = ContextVar("penstock_trace_headers", default=None)


class TraceContextHook:
    """Passes the trace headers in vLLM's own field of the request, past the code that drops them.

    ``add_request`` is called without them, so that it does not warn, and ``assign_request_id``, which it
    calls for each request that it makes, sets them on the request.
    """

    name = "trace_context"
    component = c.COMPONENT_FRONTEND

    def __init__(self) -> None:
        self._patch = Patch()
        self._announced = False

    def requires(self) -> Iterable[Requirement]:
        """Return the two methods that are patched."""
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.input_processor import InputProcessor

        return [
            Requirement(AsyncLLM, "add_request", ("trace_headers",)),
            Requirement(InputProcessor, "assign_request_id", ("request",)),
        ]

    def install(self) -> None:
        """Patch both."""
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.input_processor import InputProcessor

        add_request, assign_request_id = AsyncLLM.add_request, InputProcessor.assign_request_id

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

        self._patch.set(AsyncLLM, "add_request", keep)
        self._patch.set(InputProcessor, "assign_request_id", attach)

    def uninstall(self) -> None:
        """Restore both, and uninstall what the first request installed."""
        registry.uninstall(ClientErrorHook.name)
        self._patch.undo()

    def _announce(self, engine: Any) -> None:
        """Identify the process once, and install what only the API process needs: at its first request.

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
        settings = runtime.settings
        registry.install(ClientErrorHook(), settings.hooks_disabled if settings is not None else ())
        engine_identity.excuse_hooks(engine.vllm_config)
        runtime.start()
