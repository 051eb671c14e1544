"""The error that a client gets for a request that had to fail because of its KV or encoder outputs: 503 and why, not a bare 500.

From 0.33 on vLLM's outputs carry an error of the request, and its API process answers with it. Until 0.32 the scheduler writes the
text into the error output's ``stop_reason``, which vLLM carries to the API process and does not use for errors. There, the finish
reason ``error`` gets the text as a string subclass, which passes every serving class unchanged until ``_raise_if_error`` sees it.
Only what a policy, a quarantine, a budget or a deadline decided gets a text:
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
from penstock.instrumentation.vllm.compat import errored_requests, request_error, retryable_error
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


class LoadError(str):
    """The finish reason ``error`` of a request whose state could not be loaded; *text* is for the client."""

    __slots__ = ("text",)

    text: str

    @classmethod
    def of(cls, text: str) -> LoadError:
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
) -> str:
    """Return the client's sentence about a load of *what* (``KV`` or ``EC``) that must fail; *caused_by*: a peer that made it fail.

    *overdue*: the deadline that ended it.

    It names the policy that decided so, but not the policy's author: clients are no operators.
    """
    mode = f"mode {MODE_WORDS[cause.mode]}, " if cause.mode in MODE_WORDS else ""
    address = peer.address if peer is not None else "unknown"
    limit = f"deferral.{overdue.wait} {overdue.limit_ns / NANOS:.3g} s, " if overdue is not None else ""
    other = f", caused by peer {caused_by.address}" if caused_by is not None else ""
    by = f" ({decision.policy})" if decision.policy else ""
    return f"{what} load failure ({mode}{limit}peer {address}{other}): {decision.reason}{by}. The request can be retried."


class FailingRequests(dict[str, str]):
    """Requests of one scheduler that are about to fail: the client's sentence, by request id. On the scheduler's thread."""

    def __init__(self, scheduler: Any) -> None:
        """Start with none of *scheduler*'s."""
        super().__init__()
        self._scheduler = scheduler

    def fail(self, request_id: str) -> None:
        """Let vLLM finish a request with an error in this step's update, as it does with encoder outputs that do not fit."""
        errored_requests(self._scheduler).add(request_id)

    def attach_errors(self, outputs: Mapping[int, Any]) -> None:
        """Attach the sentences to the error outputs of a step; forget those attached and those of requests that are gone."""
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


def _attach(output: Any, reason: str) -> None:
    error = request_error(reason)
    if error is None:
        output.stop_reason = PREFIX + reason
    else:
        output.error = error


@dataclass(frozen=True)
class _Carrier:
    """That vLLM itself carries no error of a request to the API process."""

    def unmet(self) -> str:
        """Return what it does; empty if it carries none."""
        return "" if request_error("") is None else ClientErrorHook.NATIVE


class ClientErrorHook:
    """Makes the API process answer 503 with the scheduler's text, streaming or not, for each of n choices.

    In a stream whose headers are out it is the error event that carries the code and the text. To be installed in the API
    process only: what it patches is imported nowhere else. Of no use where vLLM does it.

    Attributes:
        NATIVE: why it is of no use.

    """

    NATIVE: Final = "vLLM answers with a request's own error"

    name = "client_error"
    component = c.COMPONENT_FRONTEND

    def __init__(self) -> None:
        self._patch = Patch()

    @staticmethod
    def is_used() -> bool:
        """Return whether this vLLM needs it."""
        return not _Carrier().unmet()

    def requires(self) -> Iterable[Need | Part]:
        """Return the methods that are patched, and the error that they raise."""
        from vllm import exceptions
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing
        from vllm.v1.engine.output_processor import RequestState

        return [
            _Carrier(),
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
        ]

    def install(self) -> None:
        """Patch them."""
        from vllm.entrypoints.generate.base.serving import GenerateBaseServing
        from vllm.v1.engine.output_processor import RequestState

        new_output = RequestState._new_completion_output
        raise_if_error = GenerateBaseServing._raise_if_error
        convert = GenerateBaseServing._convert_generation_error_to_streaming_response

        class RetryableLoadError(retryable_error()):  # type: ignore[misc]
            """A request failed because its state could not be loaded; the client may send it again."""

        @functools.wraps(new_output)
        def with_text(state: Any, *args: Any, **kwargs: Any) -> Any:
            output = new_output(state, *args, **kwargs)
            # For each part of each answer: only the last one has a reason, and most have none.
            reason = output.stop_reason
            if reason and output.finish_reason == _ERROR and isinstance(reason, str) and runtime.active:
                with _GUARD:
                    if reason.startswith(PREFIX):
                        output.finish_reason = LoadError.of(reason.removeprefix(PREFIX))
            return output

        @functools.wraps(raise_if_error)
        def raise_text(serving: Any, finish_reason: str | None, request_id: str) -> Any:
            if isinstance(finish_reason, LoadError):
                raise RetryableLoadError(finish_reason.text)
            return raise_if_error(serving, finish_reason, request_id)

        @functools.wraps(convert)
        def convert_text(serving: Any, e: Any) -> Any:
            # vLLM turns every error in a stream into an InternalServerError; the exception says more.
            return (
                serving.create_streaming_error_response(e)
                if isinstance(e, RetryableLoadError)
                else convert(serving, e)
            )

        self._patch.set(RequestState, "_new_completion_output", with_text)
        self._patch.set(GenerateBaseServing, "_raise_if_error", raise_text)
        self._patch.set(GenerateBaseServing, "_convert_generation_error_to_streaming_response", convert_text)

    def uninstall(self) -> None:
        """Put them back."""
        self._patch.undo()
