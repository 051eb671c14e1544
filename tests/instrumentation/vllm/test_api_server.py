"""The front end's patch, on vLLM's own AsyncLLM and InputProcessor without an engine behind them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.api_server import TraceContextHook

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

from tests.support.engine.versions import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.engine.recorder import Recorder

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
# Until 0.31 only the API server drops the headers, which comes before.
WITHOUT_HOOK = HEADERS if VERSION < (0, 32) else None


class StopHereError(Exception):
    """Ends add_request where the engine would take over."""


class Processor(InputProcessor):
    """An InputProcessor whose processing keeps what it is given; all else is vLLM's own."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def process_inputs(self, request_id: str, _prompt: Any, params: Any, **fields: Any) -> Any:
        """Return a real request with the trace headers that it is given."""
        self.given.append(fields["trace_headers"])
        return EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=[1],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=1.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            trace_headers=fields["trace_headers"],
        )


def engine(endpoint: str | None = None) -> Any:
    """Return an AsyncLLM that can do nothing but take a request, up to where its engine would take over."""
    found = object.__new__(AsyncLLM)
    found.input_processor = Processor()
    found.observability_config = SimpleNamespace(otlp_traces_endpoint=endpoint)
    found.vllm_config = SimpleNamespace(
        ec_transfer_config=None,
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        model_config=SimpleNamespace(served_model_name="tiny", model="/models/tiny"),
    )
    found.model_config = SimpleNamespace(is_encoder_decoder=False)
    found.engine_core = SimpleNamespace(
        resources=SimpleNamespace(engine_dead=False), shutdown=lambda **_: None
    )
    found.output_handler = None
    found._supported_tasks = ("generate",)
    found.requests = []

    def stop() -> None:
        raise StopHereError

    found._run_output_handler = stop
    return found


async def add(llm: Any, trace_headers: dict[str, str] | None, request_id: str = "cmpl-1") -> Any:
    """Send a request as the API server does; returns it as it would go to EngineCore."""
    seen: list[Any] = []
    assign = llm.input_processor.assign_request_id

    def keep(request: Any) -> Any:
        assign(request)
        seen.append(request)

    llm.input_processor.assign_request_id = keep
    with contextlib.suppress(StopHereError):
        await llm.add_request(
            request_id,
            {"type": "token", "prompt_token_ids": [1]},
            SamplingParams(),
            trace_headers=trace_headers,
        )
    return seen[0]


@pytest.fixture
def hook(recorder: Recorder) -> Iterator[TraceContextHook]:
    """Install the hook for the length of a test."""
    del recorder
    found = TraceContextHook()
    assert not [unmet for each in found.requires() if (unmet := each.unmet())]
    found.install()
    yield found
    found.uninstall()


async def test_vllm_drops_it(recorder: Recorder) -> None:
    """Without the hook vLLM drops the headers, or its API server does: this is what the hook is for."""
    request = await add(engine(), HEADERS)
    assert request.trace_headers == WITHOUT_HOOK


@pytest.mark.usefixtures("hook")
async def test_kept(caplog: pytest.LogCaptureFixture) -> None:
    """The caller's context is on the request, with its internal id, and vLLM does not warn about tracing."""
    with caplog.at_level(logging.WARNING):
        request = await add(engine(), HEADERS)
    assert request.trace_headers == HEADERS
    assert request.external_req_id == "cmpl-1"
    assert request.request_id != "cmpl-1"
    assert "tracing is disabled" not in caplog.text
    assert runtime.identity.process == "api"
    assert runtime.identity.model == "tiny"


@pytest.mark.usefixtures("hook")
async def test_concurrent_requests() -> None:
    """Requests that are added at the same time keep their own context, and one without stays without."""
    headers = [{"traceparent": f"00-{index:032x}-b7ad6b7169203331-01"} for index in range(1, 5)]
    requests = await asyncio.gather(*(add(engine(), each) for each in headers), add(engine(), None))
    assert [request.trace_headers for request in requests] == [*headers, None]


@pytest.mark.usefixtures("hook")
async def test_vllm_traces_itself() -> None:
    """With vLLM's own tracing the headers take vLLM's own way."""
    llm = engine("http://collector:4317")
    request = await add(llm, HEADERS)
    assert request.trace_headers == HEADERS
    assert llm.input_processor.given == [HEADERS]


@pytest.mark.usefixtures("hook")
async def test_paused() -> None:
    """While paused vLLM does what it does without us."""
    runtime.pause("test", paused=True)
    try:
        request = await add(engine(), HEADERS)
    finally:
        runtime.pause("test", paused=False)
    assert request.trace_headers == WITHOUT_HOOK


async def test_uninstalled(hook: TraceContextHook) -> None:
    """After the hook is gone the methods are vLLM's own."""
    assert isinstance(vars(InputProcessor)["assign_request_id"], staticmethod)
    hook.uninstall()
    assert AsyncLLM.add_request.__module__ == "vllm.v1.engine.async_llm"
    assert not hasattr(AsyncLLM.add_request, "__wrapped__")
    assert isinstance(vars(InputProcessor)["assign_request_id"], staticmethod)
    assert (await add(engine(), HEADERS)).trace_headers == WITHOUT_HOOK


@pytest.mark.usefixtures("hook")
async def test_host_errors_pass() -> None:
    """An error of vLLM's own reaches the caller and leaves no context behind."""
    llm = engine()
    llm.engine_core.resources.engine_dead = True
    with pytest.raises(Exception, match="EngineCore encountered an issue"):
        await llm.add_request("x", {"type": "token"}, SamplingParams(), trace_headers=HEADERS)
    assert (await add(engine(), None)).trace_headers is None
    assert not guard.counts.drain()
