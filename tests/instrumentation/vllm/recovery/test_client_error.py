"""The client's error, by vLLM's own output state and serving class, with and without the hook."""

from __future__ import annotations

import asyncio
import json
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.hooks import fit_of
from penstock.instrumentation.vllm.compat import request_error
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.recovery.client_error import (
    PREFIX,
    ClientErrorHook,
    FailingRequests,
    LoadError,
    describe,
)
from penstock.instrumentation.vllm.requests.affected import Cause
from penstock.rules import DecidedBy, Decision, Outcome

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm import exceptions
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing, GenerationError
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState
    from vllm.v1.metrics.stats import IterationStats
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.support.engine.versions import client_text, from_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.engine.recorder import Recorder

TEXT = "KV load failure (mode handshake, peer p:1): 412 tokens lost, at most 96 are recomputed (policy limits, generation 3). The request can be retried."
CHILDREN = 2
# Until 0.31 vLLM has one type of error for all that went wrong in the server.
RETRYABLE = (
    "ServiceUnavailableError" if hasattr(exceptions, "RetryableRequestError") else "InternalServerError"
)
# Until 0.27 in another module.
try:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
except ImportError:
    from vllm.entrypoints.serve.utils.error_response import create_error_response


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
    cause = Cause(1, 3)
    decision = Decision(
        Outcome.FAILED,
        DecidedBy.POLICY,
        "412 tokens lost, at most 96 are recomputed",
        policy="policy limits, generation 3",
    )
    assert describe(cause, Peer("p:1"), decision) == TEXT
    unnamed = Decision(Outcome.FAILED, DecidedBy.VLLM, "x")
    text = "KV load failure (peer unknown): x. The request can be retried."
    assert describe(Cause(0, 0), None, unnamed) == text


def test_errors_are_attached() -> None:
    """Only error outputs of failing requests get a text, each once; requests that are gone are forgotten."""
    good = EngineCoreOutput("good", [], finish_reason=FinishReason.LENGTH)
    ours = EngineCoreOutput("ours", [], finish_reason=FinishReason.ERROR)
    theirs = EngineCoreOutput("theirs", [], finish_reason=FinishReason.ERROR)
    failing = FailingRequests(SimpleNamespace(requests={"good": None}))
    failing.update({"good": "no", "ours": "why", "gone": "never"})
    failing.attach_errors({0: SimpleNamespace(outputs=[good, theirs]), 1: SimpleNamespace(outputs=[ours])})
    assert [client_text(each) for each in (good, ours, theirs)] == [None, f"{PREFIX}why", None]
    assert failing == {"good": "no"}


def failed() -> EngineCoreOutput:
    """Return the output of a request that a policy fails, as the API process receives it."""
    output = EngineCoreOutput("r", [], finish_reason=FinishReason.ERROR)
    failing = FailingRequests(SimpleNamespace(requests={"r": None}))
    failing["r"] = TEXT
    failing.attach_errors({0: SimpleNamespace(outputs=[output])})
    sent = MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output]))
    (received,) = MsgpackDecoder(EngineCoreOutputs).decode(sent).outputs
    assert isinstance(received, EngineCoreOutput)
    return received


@native
def test_native_error(recorder: Recorder) -> None:
    """The output carries the error, the client gets 503 with the same sentence, and the hook says that it is of no use."""
    assert not recorder.events
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
    processor.process_outputs([failed()], iteration_stats=stats)
    # To vLLM's own counters it has not ended (docs/upstream.md).
    assert not stats.finished_requests
    with pytest.raises(exceptions.RetryableRequestError) as caught:
        asyncio.run(collector.get())
    answer = create_error_response(caught.value).error
    assert (answer.code, answer.type, answer.message) == (503, RETRYABLE, TEXT)
    assert fit_of(ClientErrorHook()).unmet == ClientErrorHook.NATIVE


@native
def test_native_error_in_a_stream(recorder: Recorder) -> None:
    """In a stream the error event carries the same."""
    assert not recorder.events
    serving = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
    error = failed().error.to_exception()
    answer = json.loads(serving._convert_generation_error_to_streaming_response(error))["error"]
    assert (answer["code"], answer["type"], answer["message"]) == (503, RETRYABLE, TEXT)


@patched
def test_retryable_error(hook: ClientErrorHook) -> None:
    """A marked output becomes HTTP 503 with the scheduler's text; it still is the finish reason ``error`` to all others."""
    assert hook.name == "client_error"
    output = completion(PREFIX + TEXT)
    assert output.finish_reason == "error"
    error = raised(output.finish_reason)
    assert isinstance(error, getattr(exceptions, "RetryableRequestError", GenerationError))
    answer = create_error_response(error).error
    assert (answer.code, answer.type, answer.message) == (503, RETRYABLE, TEXT)


@patched
@pytest.mark.parametrize("stop_reason", [None, "of somebody else"])
def test_other_errors_stay(stop_reason: str | None, hook: ClientErrorHook) -> None:
    """Any other error stays vLLM's bare 500."""
    assert hook.name == "client_error"
    output = completion(stop_reason)
    assert not isinstance(output.finish_reason, LoadError)
    answer = create_error_response(raised(output.finish_reason)).error
    assert (answer.code, answer.message) == (500, "Internal server error")
    GenerateBaseServing._raise_if_error(SimpleNamespace(), "stop", "cmpl-1")


@patched
def test_taken_out(recorder: Recorder) -> None:
    """After un-installing vLLM's own methods are back."""
    assert not recorder.events
    before = vars(RequestState)["_new_completion_output"], vars(GenerateBaseServing)["_raise_if_error"]
    hook = ClientErrorHook()
    hook.install()
    hook.uninstall()
    assert before == (
        vars(RequestState)["_new_completion_output"],
        vars(GenerateBaseServing)["_raise_if_error"],
    )
    assert str(raised(completion(PREFIX + TEXT).finish_reason)) == "Internal server error"


@patched
def test_one_of_n_choices(hook: ClientErrorHook) -> None:
    """The text survives the merging of n choices, as the API process does it."""
    assert hook.name == "client_error"
    collector = RequestOutputCollector(RequestOutputKind.FINAL_ONLY, "r")
    for index in range(CHILDREN):
        output = completion(PREFIX + TEXT if index else None, index)
        collector.put(RequestOutput("r", "", [], None, [output], finished=bool(index)))
    merged = asyncio.run(collector.get())
    assert [isinstance(each.finish_reason, LoadError) for each in merged.outputs] == [False, True]
    assert str(raised(merged.outputs[1].finish_reason)) == TEXT


@patched
@pytest.mark.parametrize(
    ("stop_reason", "code", "kind", "message"),
    [
        (PREFIX + TEXT, 503, RETRYABLE, TEXT),
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
