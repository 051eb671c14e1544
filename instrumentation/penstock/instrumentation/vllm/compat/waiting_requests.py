"""How requests wait, and for a remote load.

Until 0.30: ``_handle_blocked_waiting_request`` has another name (:class:`BlockedWaiting`).
Until 0.31: the scheduler has no ``_set_kv_fetch_stage``, which says when a remote load makes a request wait and when it has
come (:class:`KvFetchStages`).
Until 0.30: the queue is looked at by another method (:class:`QueueLooks`); there is no second limit (:func:`running_limit`).
Until 0.31: a pause for new requests also stops those that hold blocks (:func:`admits_holders_when_paused`).
Until 0.32: a load starts in the step in which its request gets blocks; a newer vLLM may start it when a step that still uses the
blocks has ended (:func:`delayed_load`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat.difference import Difference

if TYPE_CHECKING:
    from collections.abc import Iterable

_GUARD = guard("scheduler")
_WAITING: Final = "WAITING_FOR_REMOTE_KVS"


class KvFetchStages(Difference):
    """Calls ``_set_kv_fetch_stage`` as a newer vLLM does: when a step has begun a load, and when the load has ended."""

    # Set by vLLM's Scheduler.
    requests: dict[str, Any]
    finished_recving_kv_req_ids: set[str]

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* has no such method."""
        return not hasattr(owner, "_set_kv_fetch_stage")

    def _penstock_allocated(self) -> Iterable[str]:
        """Return the ids of the requests that got blocks for a load in this step; Penstock's mixin knows them."""
        return ()

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        """Do nothing: this vLLM counts no stages."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Tell which requests wait for the loads that this step has begun."""
        upstream: Any = super()
        output = upstream.schedule(*args, **kwargs)
        with _GUARD:
            for request_id in self._penstock_allocated():
                request = self.requests.get(request_id)
                if request is not None and request.status.name == _WAITING:
                    self._set_kv_fetch_stage(request, "in_progress")
        return output

    def _update_from_kv_xfer_finished(self, kv_connector_output: Any) -> Any:
        """Tell which requests no longer wait for their load."""
        upstream: Any = super()
        result = upstream._update_from_kv_xfer_finished(kv_connector_output)
        with _GUARD:
            for request_id in kv_connector_output.finished_recving or ():
                if request_id in self.finished_recving_kv_req_ids:
                    self._set_kv_fetch_stage(self.requests[request_id], "completed_waiting")
        return result


class QueueLooks(Difference):
    """Tells Penstock's mixin which request of the queue is looked at."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* asks about blocked requests only, by the old name."""
        return hasattr(owner, "_select_waiting_queue_for_scheduling")

    def _penstock_on_looked(self, request: Any) -> None:
        """Do nothing; Penstock's mixin does."""

    def _select_waiting_queue_for_scheduling(self) -> Any:
        upstream: Any = super()
        queue = upstream._select_waiting_queue_for_scheduling()
        with _GUARD:
            if queue:
                self._penstock_on_looked(queue.peek_request())
        return queue


def running_limit(scheduler: Any) -> int:
    """Return how many requests a scheduler runs at most."""
    limit: int = getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)
    return limit


def admits_holders_when_paused(scheduler: Any) -> bool:
    """Return whether requests that hold KV blocks are run while new ones are paused."""
    code = getattr(type(scheduler).get_num_unfinished_requests, "__code__", None)
    return "kv_holding_waiting" in getattr(code, "co_names", ())


class BlockedWaiting(Difference):
    """Asks by the new name whether a request that waits for something may go on."""

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* has only the old name."""
        return not hasattr(owner, "_handle_blocked_waiting_request")

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        upstream: Any = super()
        return upstream._try_promote_blocked_waiting_request(request)  # type: ignore[no-any-return]

    def _try_promote_blocked_waiting_request(self, request: Any) -> bool:
        """Answer what vLLM asks by the old name, with Penstock's mixin in between."""
        return self._handle_blocked_waiting_request(request)


def delays_loads(scheduler: Any) -> bool:
    """Return whether *scheduler* may start a load in a later step than the one that gives its request blocks: vLLM 0.33."""
    return hasattr(scheduler, "deferred_loads")


def delayed_load(scheduler: Any, request_id: str) -> int:
    """Return the tokens of a load that *scheduler* starts in a later step, though its request has blocks and waits; 0 for none."""
    # The step it waits for, its tokens, and what vLLM counts when it starts.
    found = scheduler.deferred_loads.get(request_id)
    return int(found[1]) if found else 0
