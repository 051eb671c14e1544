"""The hooks that tell a stop from a failure: the announcement of a server's stop, and the end of an EngineCore that failed.

With ``--shutdown-timeout 0``, vLLM's default, the process that manages the EngineCores kills them as soon as it gets
SIGTERM: they have no time for a goodbye. It lives on for some moments, and says what it does. It says nothing where an
EngineCore is dead: then the server ends because of that.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Patch, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.naming import engine_identity
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable

_GUARD = guard("server_stop")


class ServerStopHook:
    """Emits ``server_stopping`` from where vLLM ends its EngineCores on purpose; it never waits.

    One API server ends them in ``AsyncLLM.shutdown``. Where several API servers run, or none (``--headless``), the
    process that has started them all does it, in ``CoreEngineProcManager.shutdown``.
    """

    name = "server_stop"
    component = c.COMPONENT_FRONTEND

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Requirement]:
        """Return the two methods that are patched, and what tells whether an EngineCore has died."""
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.core_client import BackgroundResources
        from vllm.v1.engine.utils import CoreEngineProcManager

        return [
            Requirement(AsyncLLM, "shutdown", ("timeout",)),
            Requirement(BackgroundResources, "engine_dead"),
            Requirement(BackgroundResources, "engine_manager"),
            Requirement(CoreEngineProcManager, "shutdown", ("timeout",)),
            Requirement(CoreEngineProcManager, "finished_procs"),
        ]

    def install(self) -> None:
        """Patch both methods."""
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.utils import CoreEngineProcManager

        shutdown, shutdown_engines = AsyncLLM.shutdown, CoreEngineProcManager.shutdown

        @functools.wraps(shutdown)
        def stop_server(engine: Any, *args: Any, **kwargs: Any) -> Any:
            with _GUARD:
                timeout = _timeout(*args, **kwargs)
                if timeout is not None and _has_live_engines(engine):
                    _announce(timeout, engine_identity.model_name(engine.vllm_config))
            return shutdown(engine, *args, **kwargs)

        @functools.wraps(shutdown_engines)
        def stop_engines(manager: Any, *args: Any, **kwargs: Any) -> Any:
            with _GUARD:
                timeout = _timeout(*args, **kwargs)
                # vLLM's handler of SIGTERM and SIGINT raises SystemExit in the process that has started them all.
                if timeout is not None and isinstance(sys.exc_info()[1], SystemExit) and _all_live(manager):
                    _announce(timeout)
            return shutdown_engines(manager, *args, **kwargs)

        self._patch.set(AsyncLLM, "shutdown", stop_server)
        self._patch.set(CoreEngineProcManager, "shutdown", stop_engines)

    def uninstall(self) -> None:
        """Restore both."""
        self._patch.undo()


class EngineFailureHook:
    """Keeps an EngineCore that vLLM ends after a fatal error from saying goodbye at its exit, as one that was stopped does."""

    name = "engine_failure"
    component = c.COMPONENT_SCHEDULER

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Requirement]:
        """Return the method by which an EngineCore tells its front ends that it dies."""
        from vllm.v1.engine.core import EngineCoreProc

        return [Requirement(EngineCoreProc, "_send_engine_dead")]

    def install(self) -> None:
        """Patch it."""
        from vllm.v1.engine.core import EngineCoreProc

        send_engine_dead = EngineCoreProc._send_engine_dead

        @functools.wraps(send_engine_dead)
        def fail(*args: Any, **kwargs: Any) -> Any:
            runtime.session.failed = True
            return send_engine_dead(*args, **kwargs)

        self._patch.set(EngineCoreProc, "_send_engine_dead", fail)

    def uninstall(self) -> None:
        """Restore it."""
        self._patch.undo()


def _timeout(timeout: float | None = None, **_: Any) -> float | None:
    """Return the seconds that requests in flight have; None where vLLM cleans up without a word of anybody."""
    return timeout


def _has_live_engines(engine: Any) -> bool:
    """Return whether *engine* manages EngineCores of its own that all live and have not been told to end."""
    resources = getattr(getattr(engine, "engine_core", None), "resources", None)
    if resources is None or resources.engine_dead or resources.engine_manager is None:
        return False
    return _all_live(resources.engine_manager)


def _all_live(manager: Any) -> bool:
    """Return whether no EngineCore of *manager* has failed and none was told to end; also of one that Ray runs."""
    stopped, finished = getattr(manager, "manager_stopped", None), getattr(manager, "finished_procs", dict)
    return (stopped is None or not stopped.is_set()) and not any(finished().values())


def _announce(timeout: float, model: str = "") -> None:
    if runtime.settings is None:
        return
    if not runtime.identity.process:
        # It has had no request yet, or serves none.
        runtime.identify(process="api", model=model, vllm_version=engine_identity.vllm_version())
    # Also while paused: a stop is no telemetry of requests, and without it the agent would report a loss.
    runtime.emit_event(
        "server_stopping", {"timeout_nano": int(timeout * NANOS)}, component=c.COMPONENT_FRONTEND
    )
