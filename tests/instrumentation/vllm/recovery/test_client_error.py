"""The client's error, by vLLM's own output state and serving class, with and without the hook."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import fit_of
from penstock.instrumentation.vllm.compat import error_handlers, request_error
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.recovery.client_error import (
    HEADER,
    PREFIX,
    ClientError,
    ClientErrorHook,
    FailingRequests,
    LoadError,
    describe,
)
from penstock.instrumentation.vllm.requests.affected import Cause
from penstock.rules import DecidedBy, Decision, Outcome, Trigger

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from fastapi import FastAPI
    from starlette.testclient import TestClient
    from vllm import exceptions
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing, GenerationError
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState
    from vllm.v1.metrics.stats import IterationStats
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.support.engine.client_errors import facts_of
from tests.support.engine.versions import client_text, from_version
from tests.support.manual_clock import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engine.recorder import Recorder

TEXT = "KV load failure (mode handshake, peer p:1): 412 tokens lost, at most 96 are recomputed (policy limits, generation 3). The request can be retried."
CAUSE, PEER = Cause(c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_REFUSED), Peer("p:1", "engine-p")
DECISION = Decision(
    Outcome.FAILED,
    DecidedBy.POLICY,
    "412 tokens lost, at most 96 are recomputed",
    policy="policy limits, generation 3",
)
ERROR = describe(CAUSE, PEER, DECISION)
FACTS = json.loads(ERROR.facts)
CHILDREN = 2
DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "client-errors.md"
# Until 0.31 vLLM has one type of error for all that went wrong in the server.
RETRYABLE = (
    "ServiceUnavailableError" if hasattr(exceptions, "RetryableRequestError") else "InternalServerError"
)

NATIVE = request_error("") is not None
patched = pytest.mark.skipif(NATIVE, reason="vLLM answers with a request's own error")
native = from_version(0, 33, "carries no error of a request to the API process")


@pytest.fixture
def hook(recorder: Recorder) -> Iterator[ClientErrorHook]:
    """Install the hook."""
    assert not recorder.events
    hook = ClientErrorHook()
    assert not fit_of(hook).unmet
    hook.install()
    yield hook
    hook.uninstall()


def completion(stop_reason: str | None, index: int = 0) -> CompletionOutput:
    """Return what vLLM makes of an error output of the engine."""
    state = SimpleNamespace(
        detokenizer=SimpleNamespace(get_next_output_text=lambda *_: "", output_token_ids=[]),
        logprobs_processor=SimpleNamespace(logprobs=None, cumulative_logprob=None),
        output_kind=RequestOutputKind.FINAL_ONLY,
        sampling_mask_chunks=[],
        routed_experts_chunks=[],
        request_index=index,
        spec_decode_metrics=None,
        _weight_version_spans=lambda: None,
    )
    return RequestState._new_completion_output(state, [], FinishReason.ERROR, stop_reason)


def raised(finish_reason: str | None) -> GenerationError:
    """Return what the serving class raises for a finish reason."""
    with pytest.raises(GenerationError) as caught:
        GenerateBaseServing._raise_if_error(SimpleNamespace(), finish_reason, "cmpl-1")
    return caught.value


def test_describe() -> None:
    """The sentence names mode and peer and says that a retry is safe; one without a mode leaves it out."""
    assert ERROR.text == TEXT
    unnamed = Decision(Outcome.FAILED, DecidedBy.VLLM, "x")
    text = "KV load failure (peer unknown): x. The request can be retried."
    assert describe(Cause(0, 0), None, unnamed).text == text


def test_errors_are_attached() -> None:
    """Only error outputs of failing requests get a text, each once; requests that are gone are forgotten."""
    good = EngineCoreOutput("good", [], finish_reason=FinishReason.LENGTH)
    ours = EngineCoreOutput("ours", [], finish_reason=FinishReason.ERROR)
    theirs = EngineCoreOutput("theirs", [], finish_reason=FinishReason.ERROR)
    failing = FailingRequests(SimpleNamespace(requests={"good": None}))
    no, why = ClientError("no"), ClientError("why")
    failing.update({"good": no, "ours": why, "gone": ClientError("never")})
    failing.attach_errors({0: SimpleNamespace(outputs=[good, theirs]), 1: SimpleNamespace(outputs=[ours])})
    assert [client_text(each) for each in (good, ours, theirs)] == [None, f"{PREFIX}why", None]
    assert failing == {"good": no}


def failed(error: ClientError = ERROR) -> EngineCoreOutput:
    """Return the output of a request that a policy fails, as the API process receives it."""
    output = EngineCoreOutput("r", [], finish_reason=FinishReason.ERROR)
    failing = FailingRequests(SimpleNamespace(requests={"r": None}))
    failing["r"] = error
    failing.attach_errors({0: SimpleNamespace(outputs=[output])})
    sent = MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output]))
    (received,) = MsgpackDecoder(EngineCoreOutputs).decode(sent).outputs
    assert isinstance(received, EngineCoreOutput)
    return received


def answered(app: FastAPI) -> tuple[int, dict[str, Any], str | None]:
    """Return status, error and header of the answer of *app*."""
    response = TestClient(app, raise_server_exceptions=False).get("/")
    return response.status_code, response.json()["error"], response.headers.get(HEADER)


def failing_app(error: Callable[[], Exception | None]) -> FastAPI:
    """Return an app with vLLM's own handlers whose only route raises what *error* returns then."""
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    try:
        from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    except ImportError:  # until 0.27
        app.exception_handler(GenerationError)(error_handlers().generation_error_handler)
        app.exception_handler(ValueError)(error_handlers().exception_handler)
    else:
        init_exception_handler(app)

    @app.get("/")
    async def fail() -> None:
        found = error()
        assert found is not None
        raise found

    return app


def native_error(error: ClientError = ERROR) -> Exception:
    """Return what vLLM's output processor raises for the output of a request that a policy fails."""
    collector = RequestOutputCollector(RequestOutputKind.FINAL_ONLY, "r")
    processor = OutputProcessor(None, log_stats=False)
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=SamplingParams(detokenize=False),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        external_req_id="r",
    )
    processor.add_request(request, None, None, 0, collector)
    stats = IterationStats()
    processor.process_outputs([failed(error)], iteration_stats=stats)
    # To vLLM's own counters it has not ended (docs/upstream.md).
    assert not stats.finished_requests
    with pytest.raises(exceptions.RetryableRequestError) as caught:
        asyncio.run(collector.get())
    return caught.value


@native
def test_native_error(recorder: Recorder) -> None:
    """Without the hook the client gets 503 with the same sentence, and no object."""
    assert not recorder.events
    error_of_vllm = native_error()
    status, error, header = answered(failing_app(lambda: error_of_vllm))
    assert (status, error["code"], error["type"], error["message"]) == (503, 503, RETRYABLE, TEXT)
    assert ("penstock" in error, header) == (False, None)


@native
def test_native_error_with_the_object(hook: ClientErrorHook) -> None:
    """With it the object and the header are there; all else is the same."""
    assert hook.name == "client_error"
    error_of_vllm = native_error()
    status, error, header = answered(failing_app(lambda: error_of_vllm))
    assert (status, error["code"], error["type"], error["message"]) == (503, 503, RETRYABLE, TEXT)
    assert (facts_of(error), header) == (FACTS, "1")


@native
@pytest.mark.parametrize("hooked", [False, True])
def test_native_error_in_a_stream(hooked: bool, recorder: Recorder) -> None:
    """In a stream the error event carries the same, where vLLM passes the error and where it passes its text alone."""
    assert not recorder.events
    hook = ClientErrorHook()
    if hooked:
        hook.install()
    try:
        serving = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
        error: Any = native_error()
        answers = [
            json.loads(serving._convert_generation_error_to_streaming_response(error))["error"],
            json.loads(
                serving.create_error_response(
                    str(error), err_type=RETRYABLE, status_code=error.status_code
                ).model_dump_json()
            )["error"],
        ]
    finally:
        hook.uninstall()
    for answer in answers:
        assert (answer["code"], answer["type"], answer["message"]) == (503, RETRYABLE, TEXT)
        assert answer.get("penstock") == (FACTS if hooked else None)


@pytest.mark.parametrize("stop_reason", [None, "of somebody else"])
def test_other_errors_have_no_object(stop_reason: str | None, hook: ClientErrorHook) -> None:
    """Errors of vLLM's own get neither object nor header."""
    assert hook.name == "client_error"
    status, error, header = answered(failing_app(lambda: raised(completion(stop_reason).finish_reason)))
    assert (status, error["code"], error["message"]) == (500, 500, "Internal server error")
    assert ("penstock" in error, header) == (False, None)
    status, error, header = answered(failing_app(lambda: ValueError(f"no {ERROR.encode()}")))
    assert (status, "penstock" in error, header) == (400, False, None)


@patched
def test_retryable_error(hook: ClientErrorHook) -> None:
    """A marked output becomes HTTP 503 with text, object and header; it still is the finish reason ``error`` to all others."""
    assert hook.name == "client_error"
    hook.uninstall()
    app = failing_app(lambda: raised(completion(ERROR.encode()).finish_reason))
    # As in a server: the hook comes with the first request.
    TestClient(app, raise_server_exceptions=False).get("/")
    hook.install()
    assert completion(ERROR.encode()).finish_reason == "error"
    status, error, header = answered(app)
    assert (status, error["code"], error["type"], error["message"]) == (503, 503, RETRYABLE, TEXT)
    assert (facts_of(error), header) == (FACTS, "1")


@pytest.mark.skipif(RETRYABLE == "InternalServerError", reason="the document has the type of a later vLLM")
def test_the_document(hook: ClientErrorHook) -> None:
    """Its example is what a client gets."""
    assert hook.name == "client_error"
    decision = Decision(
        Outcome.FAILED,
        DecidedBy.QUARANTINE,
        f"{Trigger.QUARANTINE.value}kvLoadFailure.action: fail",
        policy="policy limits, generation 3",
    )
    peer = Peer("10.0.0.8:5600", "5f0c8d1e-prefill-0")
    made = describe(CAUSE, peer, decision, wait_ns=24 * SECOND + 1)
    error = native_error(made) if NATIVE else raised(completion(made.encode()).finish_reason)
    _, found, header = answered(failing_app(lambda: error))
    assert (facts_of(found)["retry_after_s"], header) == (25, "25")
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example == json.dumps({"error": found}, indent=2) + "\n"


@patched
def test_a_text_alone(hook: ClientErrorHook) -> None:
    """A text without an object, as of another Penstock's scheduler, is the client's all the same."""
    assert hook.name == "client_error"
    status, error, header = answered(failing_app(lambda: raised(completion(PREFIX + TEXT).finish_reason)))
    assert (status, error["message"], "penstock" in error, header) == (503, TEXT, False, None)


@patched
@pytest.mark.parametrize("stop_reason", [None, "of somebody else"])
def test_other_errors_stay(stop_reason: str | None, hook: ClientErrorHook) -> None:
    """Any other error stays vLLM's bare 500."""
    assert hook.name == "client_error"
    output = completion(stop_reason)
    assert not isinstance(output.finish_reason, LoadError)
    assert str(raised(output.finish_reason)) == "Internal server error"
    GenerateBaseServing._raise_if_error(SimpleNamespace(), "stop", "cmpl-1")


def test_taken_out(recorder: Recorder) -> None:
    """After un-installing vLLM's own methods are back."""
    assert not recorder.events
    owners = RequestState, GenerateBaseServing, error_handlers(), type(request_error(""))
    before = [dict(vars(each)) for each in owners]
    hook = ClientErrorHook()
    hook.install()
    hook.uninstall()
    assert before == [dict(vars(each)) for each in owners]
    assert str(raised(completion(ERROR.encode()).finish_reason)) == "Internal server error"


@patched
def test_one_of_n_choices(hook: ClientErrorHook) -> None:
    """The text survives the merging of n choices, as the API process does it."""
    assert hook.name == "client_error"
    collector = RequestOutputCollector(RequestOutputKind.FINAL_ONLY, "r")
    for index in range(CHILDREN):
        output = completion(ERROR.encode() if index else None, index)
        collector.put(RequestOutput("r", "", [], None, [output], finished=bool(index)))
    merged = asyncio.run(collector.get())
    assert [isinstance(each.finish_reason, LoadError) for each in merged.outputs] == [False, True]
    assert str(raised(merged.outputs[1].finish_reason)) == TEXT


@patched
@pytest.mark.parametrize(
    ("stop_reason", "code", "kind", "message"),
    [
        (ERROR.encode(), 503, RETRYABLE, TEXT),
        (None, 500, "InternalServerError", "Internal server error"),
    ],
)
def test_in_a_stream(
    stop_reason: str | None, code: int, kind: str, message: str, hook: ClientErrorHook
) -> None:
    """In a stream the error event carries the code, the type and the text."""
    assert hook.name == "client_error"
    serving = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
    error = raised(completion(stop_reason).finish_reason)
    answer = json.loads(serving._convert_generation_error_to_streaming_response(error))["error"]
    assert (answer["code"], answer["type"], answer["message"]) == (code, kind, message)
    assert answer.get("penstock") == (FACTS if stop_reason is not None else None)


@patched
def test_without_the_place_of_the_answer(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM makes its answers elsewhere, only the object is missing, and the check says so."""
    assert not recorder.events
    handlers = error_handlers()
    app = failing_app(lambda: raised(completion(ERROR.encode()).finish_reason))
    monkeypatch.delattr(handlers, "create_error_response")
    hook = ClientErrorHook()
    fit = fit_of(hook)
    assert (fit.unmet, "error_object" in [each.name for each in fit.missing]) == ("", True)
    hook.install()
    monkeypatch.undo()
    try:
        status, error, header = answered(app)
    finally:
        hook.uninstall()
    assert (status, error["message"], "penstock" in error, header) == (503, TEXT, False, None)
