"""A front end announces the stop of its server, on vLLM's own classes; the engines behind them are stand-ins."""

from __future__ import annotations

import threading
import warnings
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.server_stop import EngineFailureHook, ServerStopHook
from penstock.proto.v1.common_pb2 import COMPONENT_FRONTEND

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.utils import CoreEngineProcManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.engine.recorder import Recorder

_KILLED = -9


class _Client(AsyncLLM):
    """vLLM's, which shuts down again when it is collected: that may be in the middle of another test."""

    def __del__(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def hook(recorder: Recorder) -> Iterator[ServerStopHook]:
    """Install the hook for the length of a test."""
    del recorder
    found = ServerStopHook()
    assert not [unmet for each in found.requires() if (unmet := each.unmet())]
    before = AsyncLLM.shutdown, CoreEngineProcManager.shutdown
    found.install()
    yield found
    found.uninstall()
    assert (AsyncLLM.shutdown, CoreEngineProcManager.shutdown) == before


def engines(*exit_codes: int | None) -> Any:
    """Return a manager of EngineCores with these exit codes; None lives until it is told to end."""
    found = object.__new__(CoreEngineProcManager)
    found.processes = [
        SimpleNamespace(name=f"EngineCore_{number}", pid=None, exitcode=code, is_alive=lambda: False)
        for number, code in enumerate(exit_codes)
    ]
    found._request_shutdown_timeout = 0
    found._finalizer = weakref.finalize(found, lambda: None)
    found.manager_stopped = threading.Event()
    return found


def server(manager: Any, *, dead: bool = False) -> Any:
    """Return an API server's client of the engines of *manager*; None: another process manages them."""
    found = object.__new__(_Client)
    found.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="tiny", model="/models/tiny")
    )
    found.output_handler = None
    found.ended = []
    found.engine_core = SimpleNamespace(
        resources=SimpleNamespace(engine_dead=dead, engine_manager=manager),
        shutdown=lambda timeout=None: found.ended.append((timeout, len(_announced()))),
    )
    return found


def _announced() -> list[float]:
    """Return the time-outs that were announced so far, in seconds."""
    recorder = cast("Any", runtime.emit_event).__self__
    events = recorder.events
    assert all(event.component == COMPONENT_FRONTEND for event in events)
    return [event.server_stopping.timeout_nano / 1e9 for event in events]


@pytest.mark.parametrize("timeout", [0, 30])
def test_an_api_server_announces_its_stop_before_its_engines_end(timeout: int) -> None:
    """Whether it kills them at once or gives them time; it was asked for nothing before, and says now what it is."""
    found = server(engines(None))
    found.shutdown(timeout=timeout)
    assert found.ended == [(timeout, 1)]
    assert _announced() == [timeout]
    assert (runtime.identity.process, runtime.identity.model) == ("api", "tiny")


def test_what_a_process_is_already_stays() -> None:
    """A process that holds an EngineCore as well goes by that."""
    runtime.identify(process="engine-core", key="0")
    server(engines(None)).shutdown(0)
    assert _announced() == [0]
    assert runtime.identity.process == "engine-core"


@pytest.mark.parametrize(
    ("found", "timeout"),
    [
        pytest.param(server(engines(None), dead=True), 0, id="vllm knows that an engine is dead"),
        pytest.param(server(engines(None, _KILLED)), 0, id="an engine was killed just now"),
        pytest.param(server(engines(1)), 0, id="an engine failed just now"),
        pytest.param(server(None), 0, id="another process manages the engines"),
        pytest.param(server(engines(None)), None, id="vllm cleans up"),
    ],
)
def test_no_stop_is_announced(found: Any, timeout: int | None) -> None:
    """The engines are lost, or have the time to say goodbye themselves."""
    found.shutdown(timeout)
    assert found.ended == [(timeout, 0)]
    assert not runtime.identity.process


def test_a_stop_is_announced_once() -> None:
    """Once the engines were told to end: vLLM shuts down again when its server has ended."""
    manager = engines(None)
    found = server(manager)
    found.engine_core.shutdown = lambda timeout=None: manager.shutdown(timeout)
    found.shutdown(timeout=0)
    found.shutdown(timeout=0)
    assert _announced() == [0]


def test_engines_that_ended_well_do_not_hide_a_stop() -> None:
    """A terminal's Ctrl-C reaches all processes at once."""
    server(engines(0, None)).shutdown(timeout=0)
    assert _announced() == [0]


def test_a_process_that_manages_engines_for_others_announces_their_stop() -> None:
    """Several API servers, or none: vLLM's handler of SIGTERM raises SystemExit there."""

    def serve(manager: Any) -> None:
        try:
            raise SystemExit
        finally:
            manager.shutdown(timeout=0)

    manager = engines(None, None)
    with suppress(SystemExit):
        serve(manager)
    assert manager.manager_stopped.is_set()
    assert _announced() == [0]
    assert runtime.identity.process == "api"


@pytest.mark.parametrize(
    ("raised", "timeout", "codes"),
    [
        (RuntimeError, None, (None,)),
        (RuntimeError, 5, (None,)),
        (SystemExit, None, (None,)),
        (SystemExit, 0, (None, _KILLED)),
    ],
    ids=[
        "a process failed",
        "a process failed, with time",
        "vllm cleans up",
        "an engine was killed just now",
    ],
)
def test_a_manager_whose_server_fails_announces_nothing(
    raised: type[BaseException], timeout: int | None, codes: tuple[int | None, ...]
) -> None:
    """The processes that it ends then are not what went wrong, but the server was not stopped on purpose."""

    def serve(manager: Any) -> None:
        try:
            raise raised
        finally:
            manager.shutdown(timeout)

    with suppress(RuntimeError, SystemExit):
        serve(engines(*codes))
    assert _announced() == []


def test_without_penstock_nothing_is_announced() -> None:
    """The environment says nothing of an agent."""
    runtime.configure(None)
    found = server(engines(None))
    found.shutdown(timeout=0)
    assert found.ended == [(0, 0)]


def test_an_engine_core_that_fails_says_no_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells its front ends as ever; a process whose session has failed ends without a goodbye."""
    monkeypatch.setattr(runtime.session, "failed", False)
    failure = EngineFailureHook()
    assert not [unmet for each in failure.requires() if (unmet := each.unmet())]
    before = EngineCoreProc._send_engine_dead
    told: list[bytes] = []
    core = object.__new__(EngineCoreProc)
    core.output_queue = SimpleNamespace(put_nowait=told.append)
    core.output_thread = SimpleNamespace(join=lambda **_: None, is_alive=lambda: False)
    failure.install()
    core._send_engine_dead()
    failure.uninstall()
    assert told == [EngineCoreProc.ENGINE_CORE_DEAD]
    assert runtime.session.failed
    assert EngineCoreProc._send_engine_dead is before


def test_also_while_paused() -> None:
    """The pause is of telemetry about requests; a stop that is not announced would be told as a loss."""
    runtime.pause("tests", paused=True)
    try:
        server(engines(None)).shutdown(timeout=0)
    finally:
        runtime.pause("tests", paused=False)
    assert _announced() == [0]
