"""The scheduler's bookkeeping: from what the mixin sees to events and gauges.

Everything but :meth:`SchedulerObserver.fill` runs on the scheduler's thread, inside a guard. What is kept is bounded by
the scheduler's own requests: each one's end removes all that is known about it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import outcomes, reports, requests
from penstock.instrumentation.vllm.deferrals import Deferral, Deferrals
from penstock.instrumentation.vllm.leases import Lease, Leases
from penstock.instrumentation.vllm.worker_orders import WorkerOrders

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.outcomes import Affected, Decision
    from penstock.instrumentation.vllm.requests import RequestRecord
    from penstock.proto.v1.snapshot_pb2 import Snapshot


class SchedulerObserver:
    """What one scheduler has told so far.

    Attributes:
        connector: name of its KV connector, empty for none.
        roles: the kinds of requests seen, ``ROLE_PREFILL`` and ``ROLE_DECODE``.
        compatibility_hash: what its workers show their peers, empty while it is not known.
        orders: what its workers are told with the next step.

    """

    def __init__(self, connector: str) -> None:
        self.connector = connector
        self.roles: set[int] = set()
        self.compatibility_hash = ""
        self.orders = WorkerOrders()
        self._records: dict[str, RequestRecord] = {}
        self._deferrals = Deferrals()
        self._leases = Leases()
        self._awaiting_token: dict[str, Any] = {}

    # Life of a request

    def arrived(self, request: Any) -> None:
        """Take a request in; an update of a streaming session is the same request."""
        if request.request_id in self._records:
            return
        record = requests.capture(request)
        self._records[request.request_id] = record
        if record.kv_role:
            self.roles.add(record.kv_role)

    def scheduled(self, new: Iterable[Any], live: dict[str, Any]) -> None:
        """Note the requests that this step schedules for the first time; *live* is the scheduler's table."""
        now = time.time_ns()
        for data in new:
            record, request = self._records.get(data.req_id), live.get(data.req_id)
            if record is not None and request is not None:
                record.scheduled(request, now)
                if not record.first_token_ns:
                    self._awaiting_token[data.req_id] = request

    def stepped(self) -> None:
        """Note the first tokens that this step brought."""
        if not self._awaiting_token:
            return
        now = time.time_ns()
        for request_id, request in list(self._awaiting_token.items()):
            record = self._records.get(request_id)
            if record is None or record.has_token(request, now):
                del self._awaiting_token[request_id]

    def closed(self, request: Any) -> None:
        """Let a finished request go and emit what its span needs."""
        request_id = request.request_id
        self._awaiting_token.pop(request_id, None)
        record = self._records.pop(request_id, None)
        ended = self._deferrals.end_all(request_id)
        for deferral in ended:
            self._emit("deferral_end", deferral.end_fields(c.DEFERRAL_ENDING_ABORTED), request_id)
        if record is None:
            return
        abandoned = outcomes.abandon(record, self.connector)
        if abandoned is not None:
            self._emit("load_outcome", abandoned, request_id)
        record.has_token(request, time.time_ns())
        lease = self._leases.get(request_id)
        self._emit("request_closed", record.closed_fields(request, lease.blocks if lease else 0), request_id)

    # Deferrals

    def deferred(self, request: Any, reason: int) -> None:
        """Note that the scheduler passes a request over; only the first time is an edge."""
        request_id = request.request_id
        record = self._records.get(request_id)
        remote = reason in {c.DEFERRAL_REASON_REMOTE_KV, c.DEFERRAL_REASON_KV_LOOKUP}
        deferral = Deferral(
            request_id,
            reason,
            time.time_ns(),
            record.peer if record is not None and remote else None,
            record.remote_request_id if record is not None and remote else "",
        )
        if self._deferrals.begin(deferral):
            self._emit("deferral_start", deferral.start_fields(), request_id)

    def ready(self, request_id: str, reason: int) -> None:
        """Note that what a request waited for is there."""
        ended = self._deferrals.end(request_id, reason)
        if ended is not None:
            self._emit("deferral_end", ended.end_fields(c.DEFERRAL_ENDING_READY), request_id)

    def is_deferred(self, request_id: str) -> bool:
        """Tell whether a request waits for anything."""
        return request_id in self._deferrals

    # Loads

    def load_begins(self, request_id: str, external_tokens: int) -> None:
        """Note that a remote load of *external_tokens* is asked of the connector."""
        record = self._records.get(request_id)
        if record is not None:
            record.begin_load(external_tokens)

    def reported(self, metadata: Any) -> None:
        """Take in what the workers said about this step."""
        for report in reports.find(metadata):
            for failure in report.failures:
                record = self._records.get(failure.request_id)
                if record is not None and record.failure is None:
                    record.failure = failure
            for request_id, began_ns in report.began:
                self._deferrals.transfer_began(request_id, began_ns)
            for request_id in report.expired:
                self._leases.expired(request_id)

    def lost(self, request: Any) -> Affected:
        """Return what a request that waits for its load loses if all of it failed."""
        computed = request.num_computed_tokens
        record = self._records.get(request.request_id)
        external = min(record.external_tokens, computed) if record is not None else 0
        lost = external or computed
        return outcomes.Affected(request.request_id, computed - lost, lost)

    def settled(self, affected: Iterable[Affected], decision: Decision) -> None:
        """Emit the outcome of each affected request, once per attempt."""
        for each in affected:
            record = self._records.get(each.request_id)
            if record is None:
                continue
            fields = outcomes.settle(record, each, decision, self.connector)
            if fields is not None:
                self._emit("load_outcome", fields, each.request_id)

    def recomputing(self, request_id: str) -> bool:
        """Tell whether the present load of a request is decided to be recomputed."""
        record = self._records.get(request_id)
        return record is not None and record.recomputing

    # Leases

    def leased(self, request_id: str, blocks: int) -> None:
        """Note that a finished request keeps its blocks for a reader."""
        self._leases.begin(Lease(request_id, blocks, time.time_ns()))

    def freed(self, request_id: str) -> None:
        """Note that a request's blocks are let go; emit the end of its lease if it had one."""
        ended = self._leases.end(request_id)
        if ended is not None:
            lease, ending = ended
            self._emit("lease_closed", lease.closed_fields(ending, self.connector), request_id)

    # Gauges

    def fill(self, snapshot: Snapshot) -> None:
        """Add the gauges to *snapshot*; on the exporter's thread, reads only."""
        for reason, peer, count, oldest in self._deferrals.gauges():
            snapshot.deferred.add(
                reason=reason,
                peer=peer.fields() if peer is not None else None,
                count=count,
                oldest_start_time_unix_nano=oldest,
            )
        count, blocks, oldest = self._leases.totals()
        snapshot.leases.count = count
        snapshot.leases.blocks = blocks
        snapshot.leases.oldest_start_time_unix_nano = oldest

    @staticmethod
    def _emit(kind: str, fields: dict[str, Any], request_id: str) -> None:
        # What ends is followed while paused too, so that nothing is left open; only the telling stops.
        if runtime.active:
            runtime.emit_event(kind, fields, component=c.COMPONENT_SCHEDULER, request_id=request_id)
