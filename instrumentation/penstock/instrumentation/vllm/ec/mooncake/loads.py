"""What the scheduler of an ``ECMooncakeConnector`` waits for, and what it has given up; the mixin over an ``ECMooncakeScheduler``.

A producer pushes an item into the memory of the consumer's workers, which tell the scheduler when it is there. The scheduler loads it
in a step of its own, before the step that computes on it: a load hands the memory over, it moves nothing. The scheduler does not
learn when a push begins, so until it has come a request has waited for its *start*.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.ec import EcFailure, Loss, RequestLoads
from penstock.instrumentation.vllm.ec.mooncake.names import REQUESTS, began_from_wire, peer_from_wire
from penstock.instrumentation.vllm.naming import Peer
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.instrumentation.vllm.messages import ItemFailure

CAPACITY: Final = 4096
"""Pushes, and failed loads, that are remembered; beyond it the oldest is forgotten."""

_ARRIVING: Final = ("AVAILABLE", "LOADING")
_PENDING: Final = ("WAITING_EVENT", *_ARRIVING)
_ENDED: Final = ("FAILED", "UNAVAILABLE", "EXPIRED", "CANCELLED")
_READY: Final = ("READY",)
STATES: Final = (*_PENDING, *_READY, "RESIDENT", *_ENDED)
"""The names of vLLM's ``SchedulerTransferState`` that are relied upon."""

_GONE: Final = Cause(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_EVICTED)
_TIMED_OUT: Final = Cause(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
_EXPIRED: Final = Cause(c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_EVICTED)
_COLLISION: Final = Cause(c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER)
_GUARD = guard("ec_mooncake")


class MooncakeLoads(RequestLoads):
    """The loads of one ``ECMooncakeScheduler``."""

    load_failure_default = "fail"

    def __init__(self, part: Any) -> None:
        """Read the tables of *part*."""
        super().__init__()
        self._part = part
        self._arrived: OrderedDict[str, tuple[Peer, int]] = OrderedDict()
        self._failed: OrderedDict[str, Cause] = OrderedDict()
        # By item: the push whose load is with the workers.
        self._dispatched: OrderedDict[str, str] = OrderedDict()

    # What is on its way

    def on_arrived(self, event: dict[str, Any]) -> None:
        """Record a push that has come, by the worker's *event*."""
        transfer_id = str(event["transfer_id"])
        if transfer_id not in self._arrived:
            began_ns = began_from_wire(event) or time.time_ns()
            _keep(self._arrived, transfer_id, (peer_from_wire(event), began_ns))

    def on_dispatched(self, specs: Collection[Any]) -> dict[str, str]:
        """Record the loads of a step; return the request of each, by transfer id, where it is known."""
        for spec in specs:
            _keep(self._dispatched, spec.mm_hash, spec.transfer_id)
        records = (self._part._transfers.get(spec.transfer_id) for spec in specs)
        return {each.transfer_id: each.request_id for each in records if each is not None and each.request_id}

    def on_loaded(self, items: Iterable[str]) -> None:
        """Record the loads that the workers have made."""
        for item in items:
            self._dispatched.pop(item, None)

    def waits_for(self, item: str) -> bool:
        """Return whether a push of *item* is awaited, has come, or is being handed over."""
        return bool(self._records(item, _PENDING))

    def transfer_began(self, item: str) -> int | None:
        """Return when the first push of *item* that has come was begun; None before."""
        arrived = (self._arrived.get(each.transfer_id) for each in self._records(item, _ARRIVING))
        return min((began_ns for _, began_ns in filter(None, arrived)), default=None)

    def peer_of(self, item: str) -> Peer | None:
        """Return the producer of a push of *item* that has come."""
        records = self._records(item, STATES)
        found = (self._arrived[each.transfer_id][0] for each in records if each.transfer_id in self._arrived)
        return next((peer for peer in found if peer != Peer()), None)

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return nothing: the workers receive."""
        return []

    def can_load(self, item: str) -> bool:
        """Return whether the workers have *item*; without requests that do without items the connector's answer stands."""
        if not any(item in items for items in self._without.values()):
            return True
        return bool(self._records(item, _READY))

    # What is not

    def on_worker_failures(self, failures: Iterable[ItemFailure]) -> None:
        """Record why workers did not load items."""
        for each in failures:
            cause = Cause(each.mode, each.error_type, each.rehearsal, self.peer_of(each.item))
            _keep(self._failed, each.item, cause)

    def losses(self, request: Any, items: Collection[str]) -> dict[str, Loss]:
        """Return the items whose push or load has ended without them."""
        found: dict[str, Loss] = {}
        for index, feature in enumerate(request.mm_features):
            item = feature.identifier
            if item in items and item not in found and item not in self.without(request.request_id):
                loss = self._loss(request, index, item)
                if loss is not None:
                    found[item] = loss
        return found

    def _loss(self, request: Any, index: int, item: str) -> Loss | None:
        request_id = request.request_id
        transfer_id = self._part._request_transfer_id(request, index) or f"{request_id}:{index}"
        own = self._part._transfers.get(transfer_id)
        if own is not None and own.mm_hash and own.mm_hash != item:
            text = "its transfer id names another item already"
            return Loss(_COLLISION, _failure(item, _COLLISION, text, request_id))
        ended = [
            own if own is not None and own.state.name in _ENDED else None,
            *(each for each in self._records(item, _ENDED) if request_id in each.notified_requests),
        ]
        record = next(filter(None, ended), None)
        if record is None:
            return None
        peer, state, seconds = self.peer_of(item), record.state.name, self._part._push_wait_timeout
        if state == "FAILED":  # a worker has reported it
            return Loss(self._failed.get(item) or Cause(_GONE.mode, _GONE.error_type, peer=peer))
        if self._dispatched.get(item) == record.transfer_id:
            reason, text = _TIMED_OUT, f"its push had come, and no worker loaded it within {seconds:g} s"
        elif state == "UNAVAILABLE":
            reason, text = _TIMED_OUT, f"no push of the item came within {seconds:g} s"
        else:
            reason, text = _EXPIRED, "its push had come, and was given back before the request asked for it"
        cause = Cause(reason.mode, reason.error_type, peer=peer)
        return Loss(cause, _failure(item, cause, text, request_id))

    def _records(self, item: str, states: Sequence[str]) -> list[Any]:
        from vllm.distributed.ec_transfer.ec_connector.mooncake.state import SchedulerTransferState

        wanted = [SchedulerTransferState[name] for name in states]
        records: list[Any] = self._part._transfers.records_for_hash(item, wanted)
        return records


def _failure(item: str, cause: Cause, text: str, request_id: str) -> EcFailure:
    return EcFailure(item, cause.mode, cause.error_type, text, peer=cause.peer, request_id=request_id)


def _keep(table: OrderedDict[str, Any], key: str, value: Any) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > CAPACITY:
        table.popitem(last=False)


class MooncakeSchedulerMixin:
    """On the scheduler's thread."""

    _penstock_loads: MooncakeLoads | None = None

    # Set by vLLM's ECMooncakeScheduler: the items that it takes to be in vLLM's encoder cache, so that it awaits no push of them.
    _local_cache: set[str]

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Await no push of what the request encodes here: for the length of the call the connector takes it as there."""
        upstream: Any = super()
        loads = self._penstock_loads
        hidden: Collection[str] = ()
        if loads is not None:
            with _GUARD:
                hidden = loads.without(request.request_id).keys() - self._local_cache
        self._local_cache.update(hidden)
        try:
            return bool(upstream.ensure_cache_available(request, num_computed_tokens))
        finally:
            self._local_cache.difference_update(hidden)

    def _accept_ready_event(self, data: dict[str, Any]) -> None:
        """Record from whom an item has come, and since when it was expected."""
        upstream: Any = super()
        upstream._accept_ready_event(data)
        loads = self._penstock_loads
        if loads is not None:
            with _GUARD:
                loads.on_arrived(data)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Name the requests of the items that this step loads to the workers."""
        upstream: Any = super()
        metadata = upstream.build_connector_meta(scheduler_output)
        loads = self._penstock_loads
        if loads is not None and metadata.loads:
            with _GUARD:
                setattr(metadata, REQUESTS, loads.on_dispatched(metadata.loads))
        return metadata

    def update_connector_output(self, connector_output: Any) -> None:
        """Record the items that the workers have loaded."""
        upstream: Any = super()
        upstream.update_connector_output(connector_output)
        loads = self._penstock_loads
        if loads is not None:
            with _GUARD:
                loads.on_loaded(getattr(connector_output.ec_connector_worker_meta, "loaded", ()))
