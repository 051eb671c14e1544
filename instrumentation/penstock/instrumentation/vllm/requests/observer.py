"""The scheduler's bookkeeping: from hook points to events and gauges.

Everything but :meth:`SchedulerObserver.fill` runs on the scheduler's thread, inside a guard. What is kept is bounded by
the scheduler's own requests: each one's end removes all that is known about it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.messages import find_reports
from penstock.instrumentation.vllm.progress import RequestCounts
from penstock.instrumentation.vllm.requests import outcomes
from penstock.instrumentation.vllm.requests import record as requests
from penstock.instrumentation.vllm.requests.gates import Gate, RequestGates
from penstock.instrumentation.vllm.requests.held_blocks import HeldBlocks, Holding, Lease, Leases
from penstock.instrumentation.vllm.requests.open_deferrals import Deferrals, OpenDeferral
from penstock.instrumentation.vllm.requests.outcomes import suspicions
from penstock.proto.deferral_channels import WAITED_CHANNELS
from penstock.rules import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.instrumentation.vllm.messages import FinishedTransfer
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests.affected import Affected, Cause
    from penstock.instrumentation.vllm.requests.record import RequestRecord
    from penstock.proto.v1.snapshot_pb2 import BlockHolder, Snapshot
    from penstock.rules import Decision

# What these waits are for is a gate of its own; other waits are for the engine.
_GATE_IS_ENCODER: Final = {reason: channel == c.CHANNEL_EC for reason, channel in WAITED_CHANNELS.items()}


class SchedulerObserver:
    """The requests, deferrals, leases and held blocks of one scheduler.

    Attributes:
        connector: name of its KV connector, empty for none.
        roles: the kinds of requests seen, ``ROLE_PREFILL`` and ``ROLE_DECODE``.
        compatibility_hash: what its workers show their peers, empty while it is not known.
        compatibility_factors: what that hash is made of, by name; empty where it cannot be proved.
        deferred: how many waits each request has.
        awaiting_token: requests that were scheduled and have no token yet.
        on_first_token: called once a request has its first token; must not raise.

    """

    def __init__(self, connector: str, block_size: int = 0) -> None:
        self.connector = connector
        self._block_size = block_size
        self._counts = RequestCounts()
        self.roles: set[int] = set()
        self.compatibility_hash = ""
        self.compatibility_factors: dict[str, str] = {}
        self._records: dict[str, RequestRecord] = {}
        self._deferrals = Deferrals()
        self.deferred: Mapping[str, int] = self._deferrals.requests
        self._leases = Leases()
        self._held = HeldBlocks()
        self.awaiting_token: dict[str, Any] = {}
        self.on_first_token: Callable[[RequestRecord, Any], object] | None = None

    # Life of a request

    def on_request_added(self, request: Any) -> None:
        """Begin a request's record; an update of a streaming session is the same request."""
        if request.request_id not in self._records:
            record = self._begin(request)
            record.interruptions = runtime.interruptions
            record.gates = RequestGates(record.arrival_ns, runtime.interruptions)

    def _begin(self, request: Any) -> RequestRecord:
        record = self._records[request.request_id] = requests.capture(request)
        self._counts.on_arrived(to_load=record.kv_role == c.ROLE_DECODE and not record.by_tier)
        if record.kv_role:
            self.roles.add(record.kv_role)
        return record

    def record(self, request_id: str) -> RequestRecord | None:
        """Return what is known about a live request."""
        return self._records.get(request_id)

    def record_of(self, request: Any) -> RequestRecord:
        """Return what is known about a live request; of one that arrived during a pause the record begins now."""
        return self._records.get(request.request_id) or self._begin(request)

    def on_scheduled(self, new: Iterable[Any], live: dict[str, Any]) -> None:
        """Record the requests that this step schedules for the first time; *live* is the scheduler's table."""
        now = time.time_ns()
        for data in new:
            record, request = self._records.get(data.req_id), live.get(data.req_id)
            if record is not None and request is not None:
                record.on_scheduled(request, now)
                if not record.first_token_ns:
                    self.awaiting_token[data.req_id] = request

    def after_step(self) -> None:
        """Record first tokens after a step."""
        now = time.time_ns()
        for request_id, request in list(self.awaiting_token.items()):
            record = self._records.get(request_id)
            if record is None or record.has_token(request, now, runtime.interruptions):
                del self.awaiting_token[request_id]
                if record is not None and self.on_first_token is not None:
                    self.on_first_token(record, request)

    def on_nans(self, counts: Mapping[str, int]) -> None:
        """Add what vLLM has counted in a step: NaNs among the logits of each request, 0 included."""
        for request_id, number in counts.items():
            record = self._records.get(request_id)
            if record is not None:
                record.nans = (record.nans or 0) + number

    def on_finished(self, request: Any) -> None:
        """End a finished request's record and emit what its span needs."""
        request_id = request.request_id
        self.awaiting_token.pop(request_id, None)
        self._held.on_finished(request_id, time.time_ns())
        record = self._records.pop(request_id, None)
        timed_out = record is not None and record.timed_out
        ending = c.DEFERRAL_ENDING_TIMEOUT if timed_out else c.DEFERRAL_ENDING_ABORTED
        for deferral in self._deferrals.end_all(request_id):
            self._emit("deferral_end", self._end_fields(deferral, ending, record), request_id)
        if record is None:
            return
        # What vLLM did about a failed load during a pause is not known.
        cause = outcomes.abandoned_cause(record) if record.watched(runtime.interruptions) else None
        if cause is not None:
            fields = outcomes.abandoned_fields(record, cause, record.connector or self.connector)
            self.emit_outcome(fields, request_id, rehearsal=cause.rehearsal)
        now = time.time_ns()
        if not record.has_token(request, now, runtime.interruptions) and record.gates is not None:
            record.gates.end(now, runtime.interruptions)
        rehearsal = cause is not None and cause.rehearsal
        ending_word = requests.finish_reason(request)
        for fields in suspicions(record, cause, ending_word, request.num_output_tokens):
            by_drill = rehearsal and fields["reason"] == c.SUSPECT_REASON_FAILED_READ
            self._emit("answer_suspected", fields, request_id, rehearsal=by_drill)
        lease = self._leases.get(request_id)
        fields = record.closed_fields(request, lease.blocks if lease else 0, ending_word)
        if record.kv_role == c.ROLE_DECODE:
            fields["unloaded_tokens"] = unloaded = record.unloaded_tokens(request, self._block_size)
            self._counts.unloaded += unloaded > 0
        self._emit("request_closed", fields, request_id)

    # Deferrals

    def on_deferred(self, request: Any, reason: int, peer: Peer | None = None) -> None:
        """Record that the scheduler passes a request over; only the first call of a wait emits an event.

        *peer*: the peer that it waits for, where the request itself does not name it; a later call may be the first to know it.
        """
        request_id = request.request_id
        if self._deferrals.is_poll(request_id, reason, peer):
            return
        record = self._records.get(request_id)
        remote = _GATE_IS_ENCODER.get(reason) is False
        # A tier asks its peer in the look-up; the load after that is a copy within this machine.
        if record is not None and record.by_tier and reason == c.DEFERRAL_REASON_REMOTE_KV:
            remote = False
        deferral = OpenDeferral(
            request_id,
            reason,
            time.time_ns(),
            record.peer if record is not None and remote else peer,
            record.remote_request_id if record is not None and remote else "",
        )
        if self._deferrals.begin(deferral):
            encoder = _GATE_IS_ENCODER.get(reason)
            if encoder is not None and record is not None and record.gates is not None:
                record.gates.on_wait(deferral.start_ns, encoder=encoder)
            self._emit("deferral_start", deferral.start_fields(), request_id)

    def on_transfer_began(self, request_id: str, reason: int, began_ns: int, peer: Peer | None) -> None:
        """Record that the transfer has begun that a request waits for."""
        self._deferrals.on_transfer_began(request_id, began_ns, reason, peer)

    def on_ready(self, request_id: str, reason: int, *, timed_out: bool = False) -> None:
        """Record that a wait of a request has ended, or that a deadline has ended it."""
        ended = self._deferrals.end(request_id, reason)
        if ended is not None:
            record = self._records.get(request_id)
            encoder = _GATE_IS_ENCODER.get(reason)
            if encoder is not None and record is not None and record.gates is not None:
                record.gates.on_ready(time.time_ns(), encoder=encoder)
            if reason == c.DEFERRAL_REASON_REMOTE_KV:
                timed_out = record is not None and record.timed_out
            ending = c.DEFERRAL_ENDING_TIMEOUT if timed_out else c.DEFERRAL_ENDING_READY
            self._emit("deferral_end", self._end_fields(ended, ending, record), request_id)

    @staticmethod
    def _end_fields(ended: OpenDeferral, ending: int, record: RequestRecord | None) -> dict[str, Any]:
        fields = ended.end_fields(ending)
        if ended.reason == c.DEFERRAL_REASON_REMOTE_KV and ending != c.DEFERRAL_ENDING_TIMEOUT:
            fields["observed_reason"] = ended.observed_reason(runtime.policy.current, time.time_ns())
        if ended.reason == c.DEFERRAL_REASON_REMOTE_KV and record is not None and record.would:
            fields["observed_reason"] = fields.get("observed_reason") or record.would
            record.would = ""
        return fields

    def is_deferred(self, request_id: str) -> bool:
        """Return whether a request waits for anything."""
        return request_id in self._deferrals

    def waits_for(self, request_id: str, reasons: Iterable[int]) -> bool:
        """Return whether a request waits for any of *reasons*."""
        return self._deferrals.waits_for(request_id, reasons)

    # Loads

    def on_worker_report(self, metadata: Any) -> None:
        """Apply the workers' reports of this step."""
        for report in find_reports(metadata):
            for request_id, at_ns, began in report.handshakes:
                self._on_stage(request_id, Gate.PEER if began else Gate.HANDSHAKE_QUEUE, at_ns)
            for request_id, began_ns in report.began:
                self._deferrals.on_transfer_began(request_id, began_ns)
                self._on_stage(request_id, Gate.TRANSFER, began_ns)
            for move in report.moves:
                if move.loads and not move.waits:
                    self._on_step_load(move)
            for request_id in report.expired:
                self._leases.on_expired(request_id)
            for request_id in report.stuck:
                self._held.on_pinned(request_id, time.time_ns())
            for misread in report.misread:
                record = self._records.get(misread.request_id)
                if record is not None:
                    record.on_misread(misread)

    def _on_stage(self, request_id: str, stage: int, at_ns: int) -> None:
        record = self._records.get(request_id)
        if record is not None and record.gates is not None:
            record.gates.on_stage(stage, at_ns, time.time_ns())

    def _on_step_load(self, move: FinishedTransfer) -> None:
        record = self._records.get(move.request_id)
        if record is not None and record.gates is not None:
            record.gates.on_loaded(move.start_ns, move.end_ns, time.time_ns())

    def on_lost(self, request_id: str, until: int) -> None:
        """Record that a request has lost what it had up to the token *until*, and computes it here."""
        record = self._records.get(request_id)
        if record is not None and record.gates is not None:
            record.gates.on_lost(until, time.time_ns())

    def on_preempted(self, request_id: str) -> None:
        """Record that a request is sent back to the queue."""
        record = self._records.get(request_id)
        if record is not None:
            record.preempted_ns = time.time_ns()

    def on_load_decided(
        self, record: RequestRecord, affected: Affected, decision: Decision, cause: Cause, policy_hash: str
    ) -> None:
        """Emit the outcome of a KV load."""
        if decision.outcome is Outcome.RECOMPUTED:
            self.on_lost(affected.request_id, affected.kept + affected.lost)
        fields = outcomes.outcome_fields(
            affected,
            decision,
            cause,
            channel=c.CHANNEL_KV,
            attempt=record.present_attempt,
            peer=record.load_peer,
            connector=record.connector or self.connector,
            policy_hash=policy_hash,
        )
        self.emit_outcome(fields, affected.request_id, rehearsal=cause.rehearsal)

    def emit_outcome(self, fields: dict[str, Any], request_id: str, *, rehearsal: bool) -> None:
        """Emit a ``LoadOutcome`` of *fields*."""
        self._emit("load_outcome", fields, request_id, rehearsal=rehearsal)

    # Held blocks

    def on_load_waiting(self, request_id: str, blocks: int, peer: Peer | None) -> None:
        """Record that a load holds *blocks* of a request that waits for it; *peer* is its other end."""
        self._held.begin(request_id, Holding(c.BLOCK_HOLDER_LOAD, blocks, time.time_ns(), peer))

    def on_load_ended(self, request_id: str) -> None:
        """Record that the load of a request has ended, and the request may go on."""
        self._held.end(request_id)

    def load_peer(self, request_id: str) -> Peer | None:
        """Return the other end of the load that a request waits for."""
        return self._held.peer(request_id)

    def on_pinned(self, request_id: str) -> int:
        """Record that the load of a request goes on although it was given up; return how many blocks it holds."""
        return self._held.on_pinned(request_id, time.time_ns())

    def on_kept(self, request: Any, blocks: int) -> None:
        """Record that a request keeps its blocks as it finishes: for a reader where one is announced, else for a save."""
        request_id, now = request.request_id, time.time_ns()
        record = self._records.get(request_id)
        record = record or requests.capture(request)
        to_reader = record.kv_role == c.ROLE_PREFILL and not record.by_tier
        lease = Lease(request_id, blocks, now, to_reader=to_reader)
        self._leases.begin(lease)
        if not lease.to_reader:
            self._held.begin(request_id, Holding(c.BLOCK_HOLDER_SAVE, blocks, now))

    def on_blocks_freed(self, request_id: str) -> None:
        """Emit the end of a request's lease, if it had one: its blocks are free."""
        self._held.end(request_id)
        ended = self._leases.end(request_id)
        if ended is not None:
            lease, ending = ended
            self._emit("lease_closed", lease.closed_fields(ending, self.connector), request_id)

    # Gauges

    def open_waits(self) -> Mapping[str, OpenDeferral]:
        """Return a wait of each request that has one, from any thread."""
        return self._deferrals.by_request()

    def fill(self, snapshot: Snapshot) -> None:
        """Add the gauges to *snapshot*; on the exporter's thread, reads only."""
        for reason, peer, count, oldest in self._deferrals.gauges():
            snapshot.deferred.add(
                reason=reason,
                peer=peer.fields() if peer is not None else None,
                count=count,
                oldest_start_time_unix_nano=oldest,
            )
        self._counts.fill(snapshot.progress)
        for peer, count, oldest in self._deferrals.unstarted():
            snapshot.progress.unstarted.add(
                peer=peer.fields() if peer is not None else None,
                count=count,
                oldest_start_time_unix_nano=oldest,
            )
        count, blocks, oldest = self._leases.totals()
        snapshot.leases.count = count
        snapshot.leases.blocks = blocks
        snapshot.leases.oldest_start_time_unix_nano = oldest
        for held in self._held.gauges():
            snapshot.held.add(
                holder=cast("BlockHolder", held.holder),
                peer=held.peer.fields() if held.peer is not None else None,
                requests=held.requests,
                blocks=held.blocks,
                oldest_start_time_unix_nano=held.oldest_start_ns,
            )

    @staticmethod
    def _emit(kind: str, fields: dict[str, Any], request_id: str, *, rehearsal: bool = False) -> None:
        # State is kept up while paused too, so that nothing is left open; only the events stop.
        if runtime.active:
            runtime.emit_event(
                kind, fields, component=c.COMPONENT_SCHEDULER, request_id=request_id, rehearsal=rehearsal
            )
