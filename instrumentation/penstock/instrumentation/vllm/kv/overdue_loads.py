"""The loads of one scheduler that are over a deadline: who can end them, and what no worker ends is given up here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.compat import transfer_mode
from penstock.instrumentation.vllm.kv.abandoned_loads import loading_connector, takes_orders
from penstock.instrumentation.vllm.kv.failure_planner import WAITING_FOR_KV
from penstock.instrumentation.vllm.naming import Peer
from penstock.rules import Trigger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from penstock.instrumentation.vllm.kv.abandoned_loads import AbandonedLoads
    from penstock.instrumentation.vllm.kv.base import KvTransfers
    from penstock.instrumentation.vllm.kv.decider import KvDeadlines
    from penstock.instrumentation.vllm.kv.request_peers import RequestPeers
    from penstock.instrumentation.vllm.requests import SchedulerObserver
    from penstock.rules import Overdue


def pulls(connector: Any) -> bool:
    """Return whether *connector* is NIXL's that reads from its peers: its workers obey, and tell when a transfer begins."""
    return transfer_mode(getattr(connector, "connector_scheduler", None)) == "pull"


class OverdueLoads:
    """On the scheduler's thread, inside a step."""

    def __init__(self, scheduler: Any, observer: SchedulerObserver) -> None:
        """Ask *scheduler*, and *observer* about its requests."""
        self._scheduler = scheduler
        self._observer = observer

    def worker_ends(self, request_id: str) -> bool:
        """Return whether workers can be told to end what a request waits for."""
        connector = loading_connector(self._scheduler.connector, request_id)
        return takes_orders(connector) and self.is_waited_for(request_id)

    def is_waited_for(self, request_id: str) -> bool:
        """Return whether a request waits for a load."""
        request = self._scheduler.requests.get(request_id)
        return request is not None and request.status.name == WAITING_FOR_KV

    def trigger(self, request_id: str, deadlines: KvDeadlines) -> Trigger:
        """Return what has ended the load of a request."""
        record = self._observer.record(request_id)
        if record is not None and self.is_waited_for(request_id):
            # Of an order that was obeyed the report may be lost.
            unreported = record.failure is None and deadlines.is_given_up(request_id)
            if record.given_up or unreported:
                return Trigger.START_WAIT
        return Trigger.FAILURE if deadlines.overdue(request_id) is None else Trigger.DEADLINE

    def give_up(
        self,
        left: Iterable[Overdue],
        ended: AbstractSet[str],
        abandoned: AbandonedLoads,
        transfers: KvTransfers,
        peers: RequestPeers,
    ) -> frozenset[str]:
        """Give up those of *left*, which no worker ends, that have not *ended* in this step; return their requests."""
        given_up = [
            each for each in left if each.request_id not in ended and self.is_waited_for(each.request_id)
        ]
        for each in given_up:
            record = self._observer.record(each.request_id)
            if record is not None and record.request_id not in abandoned:
                peer = self._observer.load_peer(record.request_id) or record.peer or Peer()
                record.connector = type(
                    loading_connector(self._scheduler.connector, record.request_id)
                ).__name__
                failure = abandoned.give_up(record, each, peer)
                transfers.on_given_up(record.request_id, peer)
                # Another rank may have failed before.
                if record.failure is None:
                    record.failure = failure
                    peers.on_load_failed(record)
        return frozenset(each.request_id for each in given_up)
