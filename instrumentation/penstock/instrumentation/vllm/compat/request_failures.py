"""How a request is preempted or fails.

Until 0.26: a preempted request has no stale output to drop; its frames are counted and discarded one by one
(:class:`StaleOutput` and the functions that drop).
Until 0.30: a request whose encoder outputs do not fit has no set of its own; it fails with those whose grammar does not
compile (:func:`errored_requests`).
Until 0.31: vLLM has no error that a client may retry; its error of a failed generation carries the status
(:func:`retryable_error`).
"""

from __future__ import annotations

import inspect
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat.difference import Difference

if TYPE_CHECKING:
    from collections.abc import MutableSet


# Of vLLM's Request: how many of its next frames of output are dropped.
_TO_DISCARD: Final = "async_tokens_to_discard"
_STALE: Final = "num_stale_output_tokens"


class StaleOutput(Difference):
    """Drops the frames that are to be discarded under synchronous scheduling, too; vLLM's own does only under asynchronous."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* discards nothing itself."""
        preempt = getattr(owner, "_preempt_request", None)
        if preempt is None or _is_asynchronous(owner):
            return False
        return "drop_stale_output" not in inspect.signature(preempt).parameters

    def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> Any:
        if request.async_tokens_to_discard > 0:
            request.async_tokens_to_discard -= 1
            return [], False
        upstream: Any = super()
        return upstream._update_request_with_output(request, new_token_ids)


def preempt_dropping(scheduler: Any, request: Any, at: float) -> None:
    """Send a running request, already taken out of the running ones, back to the queue; what it has in flight is dropped.

    Args:
        scheduler: vLLM's.
        request: its request.
        at: the moment, by ``time.monotonic()``.

    """
    if hasattr(request, _STALE):
        scheduler._preempt_request(request, at, drop_stale_output=True)
        return
    scheduler._preempt_request(request, at)
    _discard(scheduler, request)


def has_stale_output(request: Any) -> bool:
    """Return whether a preempted request has output in flight that would be delivered."""
    stale = getattr(request, _STALE, None)
    return bool(request.num_output_placeholders if stale is None else stale > 0)


def drop_stale_output(scheduler: Any, request: Any) -> None:
    """Have vLLM drop the output that a preempted request has in flight."""
    if hasattr(request, _STALE):
        request.drop_stale_output = True
    else:
        _discard(scheduler, request)


def drop_output(scheduler: Any, request: Any) -> None:
    """Have vLLM drop what a request that fails has in flight."""
    if hasattr(request, _STALE):
        request.num_stale_output_tokens = request.num_in_flight_tokens
    drop_stale_output(scheduler, request)


def _discard(scheduler: Any, request: Any) -> None:
    """Discard the frames in flight, as vLLM does when it resets its prefix cache."""
    if _is_asynchronous(type(scheduler)):
        setattr(request, _TO_DISCARD, request.num_output_placeholders)
        request.num_output_placeholders = 0
    else:
        # The step that is under way, unless it ends within the prompt and gives no token.
        setattr(request, _TO_DISCARD, 0 if request.is_prefill_chunk else 1)


def _is_asynchronous(scheduler: type) -> bool:
    return any(each.__name__ == "AsyncScheduler" for each in scheduler.__mro__)


def errored_requests(scheduler: Any) -> MutableSet[str]:
    """Return the ids of the requests that vLLM finishes with an error at the end of the present update."""
    found: MutableSet[str] | None = getattr(scheduler, "encoder_cache_mismatch_reqs", None)
    return scheduler.grammar_compile_error_reqs if found is None else found


def retryable_error() -> type[Exception]:
    """Return the class of the errors that vLLM answers with 503 and their text. Imports the API process's modules."""
    from vllm import exceptions
    from vllm.entrypoints.generate.base import serving

    newest: type[Exception] | None = getattr(exceptions, "RetryableRequestError", None)
    # Until 0.26 the error has another home; where it is raised, its name is the same.
    return newest or _with_status(vars(sys.modules[serving.__name__])["GenerationError"])


def _with_status(base: Any) -> type[Exception]:
    class RetryableRequestError(base):  # type: ignore[misc]
        """A failed generation that the client may send again."""

        def __init__(self, message: str) -> None:
            super().__init__(message)
            self.status_code = HTTPStatus.SERVICE_UNAVAILABLE

    return RetryableRequestError
