"""How a request is preempted or fails, and how a failed load is told and counted.

Until 0.26: a preempted request has no stale output to drop; its frames are counted and discarded one by one
(:class:`StaleOutput` and the functions that drop).
Until 0.29: a load that fails on a worker is told by its blocks alone, not by its request (:class:`FailedReceives` and the
functions about receives).
Until 0.29: a NIXL worker that fails a load which has already failed and been told ends its engine (:class:`GivenUpLoads`).
Until 0.30: vLLM's counter of failed transfers has failed handshakes in it, and reads that come too late, once for each
request (:func:`counts_transfers_alone`).
Until 0.30: a request whose encoder outputs do not fit has no set of its own; it fails with those whose grammar does not
compile (:func:`errored_requests`).
Until 0.27: the API server's handlers of errors are in another module (:func:`error_handlers`).
Until 0.31: vLLM has no error that a client may retry; its error of a failed generation carries the status
(:func:`retryable_error`).
Until 0.32: a scheduler cannot tell the API process why a request failed (:func:`request_error`).
"""

from __future__ import annotations

import inspect
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat.difference import Difference

if TYPE_CHECKING:
    from collections.abc import MutableSet
    from collections.abc import Set as AbstractSet

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


_LOAD_FAILURE: Final = "penstock_load_failure"


def request_error(text: str, facts: str = "") -> Any | None:
    """Return the error of a request that the scheduler's output takes along, and that the API process answers with 503 and *text*.

    Its code, which vLLM tells nobody, takes *facts* along. None where vLLM's outputs carry none.
    """
    from vllm.v1.engine import EngineCoreOutput

    if "error" not in EngineCoreOutput.__struct_fields__:
        return None
    from vllm.outputs import RequestError

    return RequestError(code=f"{_LOAD_FAILURE} {facts}".rstrip(), message=text, retryable=True)


def native_facts(error: Any) -> str:
    """Return the facts that an error of :func:`request_error` takes along; empty for other errors."""
    name, _, facts = error.code.partition(" ")
    return facts if name == _LOAD_FAILURE else ""


def error_handlers() -> Any:
    """Return the API process's module that answers a failed generation where no serving class does."""
    try:
        from vllm.entrypoints.serve.exception_handling.handlers import vllm_error
    except ImportError:
        from vllm.entrypoints.serve.utils import server_utils

        return server_utils
    return vllm_error


_WAITING: Final = "WAITING_FOR_REMOTE_KVS"
_NONE: Final[AbstractSet[str]] = frozenset()


class FailedReceives(Difference):
    """Lets a request that waits for its load lose all of it, as ``_handle_failed_recving`` of a newer vLLM does."""

    # Set by vLLM's Scheduler.
    requests: dict[str, Any]
    failed_recving_kv_req_ids: set[str]
    recompute_kv_load_failures: bool
    kv_cache_config: Any

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* has no such method."""
        return not hasattr(owner, "_handle_failed_recving")

    def _handle_failed_recving(self, failed_req_ids: set[str]) -> set[str]:
        affected = set()
        for request_id in failed_req_ids:
            request = self.requests.get(request_id)
            if request is not None and request.status.name == _WAITING:
                affected.add(request_id)
                if self.recompute_kv_load_failures:
                    # vLLM frees its blocks when every rank has ended the load, and computes it from the start.
                    request.num_computed_tokens = 0
                    self.failed_recving_kv_req_ids.add(request_id)
        return set() if self.recompute_kv_load_failures else affected


def can_fail_loads(scheduler: Any) -> bool:
    """Return whether workers can tell *scheduler* a failed load; by its blocks they cannot where blocks have several groups."""
    return not isinstance(scheduler, FailedReceives) or len(scheduler.kv_cache_config.kv_cache_groups) <= 1


def failed_receives(output: Any) -> AbstractSet[str]:
    """Return the requests whose load failed as a whole, by a step's ``KVConnectorOutput``."""
    return getattr(output, "failed_recving", None) or _NONE


def tells_of_unread() -> bool:
    """Return whether a NIXL worker may tell a peer that its blocks are not read without a load of its own that could fail.

    Before ``awaiting_kvs`` a handshake that failed for such a request was reported as the end of a load that nobody waited for, and
    ended the engine.
    """
    metadata = sys.modules.get("vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata")
    return "awaiting_kvs" in getattr(getattr(metadata, "ReqMeta", None), "__dataclass_fields__", {})


def awaits_blocks(meta: Any) -> bool:
    """Return whether a NIXL worker's ``ReqMeta`` is of a load, not of a peer's release alone."""
    awaiting = getattr(meta, "awaiting_kvs", None)
    return any(meta.local_block_ids) if awaiting is None else bool(awaiting)


def has_failed_receive(worker: Any, request_id: str) -> bool:
    """Return whether a NIXL worker knows that the load of a request has failed, and has not told it yet."""
    return request_id in (getattr(worker, "_recv_failures", None) or _NONE)


def can_fail_receive(worker: Any) -> bool:
    """Return whether a NIXL worker can tell a failed load. One that tells blocks cannot where blocks have several groups."""
    return hasattr(worker, "_recv_failures") or not worker._is_hma_required


def fail_receive(worker: Any, request_id: str, blocks: Any) -> None:
    """Have a NIXL worker tell, at the end of this step, that a load has failed; *blocks* are its ids, by group."""
    if not hasattr(worker, "_recv_failures"):
        worker._invalid_block_ids.put(set(blocks[0]))
    worker._failed_recv_reqs.put(request_id)


class GivenUpLoads(Difference):
    """Keeps the late failure of a load that Penstock gave up from vLLM, which was told of it when it was given up."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* is a NIXL worker that takes failures of loads it no longer knows."""
        return hasattr(owner, "_handle_failed_transfer") and not hasattr(owner, "get_transfer_results")

    def _penstock_pop_given_up(self, req_id: str) -> bool:
        """Return, once, whether what fails on this thread is a load that was given up; Penstock's mixin knows."""
        del req_id
        return False

    def _handle_failed_transfer(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        if self._penstock_pop_given_up(req_id):
            return None
        return upstream._handle_failed_transfer(req_id, *args, **kwargs)


def counts_transfers_alone(worker: Any) -> bool:
    """Return whether a NIXL worker counts a failure that has a counter of its own under that alone."""
    method = getattr(worker, "_handle_failed_transfer", None)
    return method is None or "record_failed_transfer" in inspect.signature(method).parameters
