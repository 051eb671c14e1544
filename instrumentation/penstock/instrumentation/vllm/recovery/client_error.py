"""The error that a client gets for a request that had to fail because of its KV or encoder outputs: 503 and why, not a bare 500.

From 0.33 on vLLM's outputs carry an error of the request, and its API process answers with it. Until 0.32 the scheduler writes the
text into the error output's ``stop_reason``, which vLLM carries to the API process and does not use for errors. There, the finish
reason ``error`` gets the text as a string subclass, which passes every serving class unchanged until ``_raise_if_error`` sees it.
Behind the text, or in the error's own code, travels the object for machines (``error_facts.py``), which the API process puts beside
vLLM's fields. Only what a policy, a quarantine, a budget or a deadline decided gets a text:
without a policy vLLM's own answer stays as it is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Part, Patch, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import (
    error_handlers,
    errored_requests,
    native_facts,
    request_error,
    retryable_error,
)
from penstock.instrumentation.vllm.recovery.error_facts import decode, error_facts
from penstock.instrumentation.vllm.requests import MODE_WORDS
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.hooks import Need
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests import Cause
    from penstock.rules import Decision, Overdue

_GUARD = guard("client_error")
_ERROR: Final = "error"

PREFIX: Final = "penstock.load_failure: "
"""The beginning of a ``stop_reason`` of Penstock's."""


HEADER: Final = "Retry-After"
"""The header with the object's ``retry_after_s``."""

_OBJECT: Final = "penstock"


@dataclass(frozen=True, slots=True)
class ClientError:
    """Why a request fails: a sentence for the client, and the object for its machines as one line of JSON."""

    text: str
    facts: str = ""

    def encode(self) -> str:
        """Return a ``stop_reason`` that carries it."""
        return f"{PREFIX}{self.text}\n{self.facts}"


class ClientText(str):
    """The client's sentence in the API process, with the object on it; None where none came."""

    __slots__ = ("facts",)

    facts: dict[str, Any] | None

    @classmethod
    def of(cls, text: str, facts: str) -> ClientText:
        """Return *text* with the object that *facts* encodes."""
        made = cls(text)
        made.facts = decode(facts)
        return made

    @classmethod
    def carried(cls, stop_reason: str) -> ClientText:
        """Return what :meth:`ClientError.encode` encoded."""
        text, _, facts = stop_reason.removeprefix(PREFIX).rpartition("\n")
        made = cls.of(text, facts)
        return made if made.facts is not None else cls.of(stop_reason.removeprefix(PREFIX), "")


class LoadError(str):
    """The finish reason ``error`` of a request whose state could not be loaded; *text* is for the client."""

    __slots__ = ("text",)

    text: ClientText

    @classmethod
    def of(cls, text: ClientText) -> LoadError:
        """Return the finish reason with *text* on it."""
        error = cls(_ERROR)
        error.text = text
        return error


def describe(
    cause: Cause,
    peer: Peer | None,
    decision: Decision,
    what: str = "KV",
    caused_by: Peer | None = None,
    overdue: Overdue | None = None,
    wait_ns: int | None = None,
) -> ClientError:
    """Return what the client learns of a load of *what* (``KV`` or ``EC``) that must fail; *caused_by*: a peer that made it fail.

    *overdue*: the deadline that ended it. *wait_ns*: until a retry may succeed (``retry_after_s``).

    It names the policy that decided so, but not the policy's author: clients are no operators.
    """
    mode = f"mode {MODE_WORDS[cause.mode]}, " if cause.mode in MODE_WORDS else ""
    address = peer.address if peer is not None else "unknown"
    limit = f"deferral.{overdue.wait} {overdue.limit_ns / NANOS:.3g} s, " if overdue is not None else ""
    other = f", caused by peer {caused_by.address}" if caused_by is not None else ""
    by = f" ({decision.policy})" if decision.policy else ""
    text = f"{what} load failure ({mode}{limit}peer {address}{other}): {decision.reason}{by}. The request can be retried."
    return ClientError(text, error_facts(cause, peer, decision, what, wait_ns))


class FailingRequests(dict[str, ClientError]):
    """Requests of one scheduler that are about to fail: what the client learns, by request id. On the scheduler's thread."""

    def __init__(self, scheduler: Any) -> None:
        """Start with none of *scheduler*'s."""
        super().__init__()
        self._scheduler = scheduler

    def fail(self, request_id: str) -> None:
        """Let vLLM finish a request with an error in this step's update, as it does with encoder outputs that do not fit."""
        errored_requests(self._scheduler).add(request_id)

    def attach_errors(self, outputs: Mapping[int, Any]) -> None:
        """Attach what the clients learn to the error outputs of a step; forget those attached and those of requests that are gone."""
        if not self:
            return
        for batch in outputs.values():
            for output in batch.outputs:
                if output.finish_reason is not None and str(output.finish_reason) == _ERROR:
                    reason = self.pop(output.request_id, None)
                    if reason is not None:
                        _attach(output, reason)
        for request_id in [each for each in self if each not in self._scheduler.requests]:
            del self[request_id]


def _attach(output: Any, reason: ClientError) -> None:
    error = request_error(reason.text, reason.facts)
    if error is None:
        output.stop_reason = reason.encode()
    else:
        output.error = error


class ClientErrorHook:
    """Makes the API process answer 503 with the scheduler's text and object, streaming or not, for each of n choices.

    In a stream whose headers are out it is the error event that carries them. To be installed in the API process only: what it
    patches is imported nowhere else. Where vLLM itself carries the text, it adds the object alone.
    """

    name = "client_error"
    component = c.COMPONENT_FRONTEND

    def __init__(self) -> None:
        self._patch = Patch()

    def requires(self) -> Iterable[Need | Part]:
        """Return the methods that are patched, and the error that they raise."""
        from vllm import exceptions
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing
        from vllm.v1.engine.output_processor import RequestState

        if _is_native():
            return [Requirement(_native_class(), "to_exception"), *_answers()]
        return [
            Requirement(
                RequestState, "_new_completion_output", ("token_ids", "finish_reason", "stop_reason")
            ),
            Requirement(GenerateBaseServing, "_raise_if_error", ("finish_reason", "request_id")),
            Requirement(GenerateBaseServing, "_convert_generation_error_to_streaming_response", ("e",)),
            Part(
                "error_type",
                "the type ServiceUnavailableError in the body of a 503, and the error of a stream that has no token yet "
                "(it ends empty)",
                (Requirement(exceptions, "RetryableRequestError"),),
            ),
            _object_part(),
        ]

    def install(self) -> None:
        """Patch them."""

        class RetryableLoadError(retryable_error()):  # type: ignore[misc]
            """A request failed because its state could not be loaded; the client may send it again."""

            def __init__(self, text: ClientText) -> None:
                super().__init__(text)
                self.text = text

            def __str__(self) -> str:
                # Some of vLLM's streams take the error's text alone.
                return self.text

        if _is_native():
            self._carry_natively(RetryableLoadError)
        else:
            self._carry(RetryableLoadError)
        if not _object_part().missing():
            self._answer(RetryableLoadError)

    def _carry_natively(self, error_class: type[Exception]) -> None:
        """Have vLLM raise *error_class* for the error that its output carries."""
        native = _native_class()
        to_exception = native.to_exception

        @functools.wraps(to_exception)
        def with_object(error: Any) -> Any:
            if runtime.active:
                with _GUARD:
                    facts = native_facts(error)
                    if facts:
                        return error_class(ClientText.of(error.message, facts))
            return to_exception(error)

        self._patch.set(native, "to_exception", with_object)

    def _carry(self, error_class: type[Exception]) -> None:
        """Have the serving classes raise *error_class* for what a stop reason carries."""
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing
        from vllm.v1.engine.output_processor import RequestState

        new_output = RequestState._new_completion_output
        raise_if_error = GenerateBaseServing._raise_if_error
        convert = GenerateBaseServing._convert_generation_error_to_streaming_response

        @functools.wraps(new_output)
        def with_text(state: Any, *args: Any, **kwargs: Any) -> Any:
            output = new_output(state, *args, **kwargs)
            # For each part of each answer: only the last one has a reason, and most have none.
            reason = output.stop_reason
            if reason and output.finish_reason == _ERROR and isinstance(reason, str) and runtime.active:
                with _GUARD:
                    if reason.startswith(PREFIX):
                        output.finish_reason = LoadError.of(ClientText.carried(reason))
            return output

        @functools.wraps(raise_if_error)
        def raise_text(serving: Any, finish_reason: str | None, request_id: str) -> Any:
            if isinstance(finish_reason, LoadError):
                raise error_class(finish_reason.text)
            return raise_if_error(serving, finish_reason, request_id)

        @functools.wraps(convert)
        def convert_text(serving: Any, e: Any) -> Any:
            # vLLM turns every error in a stream into an InternalServerError; the exception says more.
            return (
                serving.create_streaming_error_response(e)
                if isinstance(e, error_class)
                else convert(serving, e)
            )

        self._patch.set(RequestState, "_new_completion_output", with_text)
        self._patch.set(GenerateBaseServing, "_raise_if_error", raise_text)
        self._patch.set(GenerateBaseServing, "_convert_generation_error_to_streaming_response", convert_text)

    def _answer(self, error_class: type[Exception]) -> None:
        """Have the answers to *error_class* carry its object and the header: those of the serving classes and of the server."""
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing

        handlers = error_handlers()
        json_response = handlers.JSONResponse

        def with_object(create: Any) -> Any:
            @functools.wraps(create)
            def create_with_object(message: Any, *args: Any, **kwargs: Any) -> Any:
                answer = create(message, *args, **kwargs)
                with _GUARD:
                    text = str(message) if isinstance(message, error_class) else message
                    if isinstance(text, ClientText) and text.facts is not None:
                        setattr(answer.error, _OBJECT, text.facts)
                return answer

            return create_with_object

        @functools.wraps(json_response)
        def with_header(*args: Any, **kwargs: Any) -> Any:
            response = json_response(*args, **kwargs)
            with _GUARD:
                seconds = _retry_after(kwargs.get("content", args[0] if args else None))
                if seconds is not None:
                    response.headers[HEADER] = str(seconds)
            return response

        created = with_object(GenerateBaseServing.create_error_response)
        self._patch.set(GenerateBaseServing, "create_error_response", staticmethod(created))
        self._patch.set(handlers, "create_error_response", with_object(handlers.create_error_response))
        self._patch.set(handlers, "JSONResponse", with_header)

    def uninstall(self) -> None:
        """Put them back."""
        self._patch.undo()


def _is_native() -> bool:
    """Return whether vLLM itself carries the error of a request to the API process."""
    return request_error("") is not None


def _native_class() -> Any:
    return type(request_error(""))


def _answers() -> list[Need]:
    """Return where the API process makes the answer to a failed generation."""
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing

    return [
        Requirement(GenerateBaseServing, "create_error_response", ("message",)),
        Requirement(error_handlers(), "create_error_response", ("message",)),
        Requirement(error_handlers(), "JSONResponse"),
    ]


def _object_part() -> Part:
    return Part(
        "error_object",
        "the object penstock in the body of a 503, and its header Retry-After",
        tuple(_answers()),
    )


def _retry_after(body: Any) -> int | None:
    """Return the seconds that the object of an answer's *body* names; None where there is no object."""
    error = body.get("error") if isinstance(body, dict) else None
    facts = error.get(_OBJECT) if isinstance(error, dict) else None
    return facts.get("retry_after_s") if isinstance(facts, dict) else None
