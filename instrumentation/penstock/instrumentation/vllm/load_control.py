"""What one scheduler does about remote KV loads: admission, deadlines, failures. It joins the parts; each decides for itself.

The scheduler's mixin and the connector's talk to it inside the guard. While Penstock is paused nobody does, and vLLM's own
configuration holds.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.decisions import DecidedBy, Outcome, Trigger
from penstock.instrumentation.vllm import client_error, outcomes
from penstock.instrumentation.vllm.judge import Judge
from penstock.instrumentation.vllm.kv_failures import KvFailures
from penstock.instrumentation.vllm.kv_transfers import KvTransfers
from penstock.instrumentation.vllm.load_deadlines import LoadDeadlines
from penstock.instrumentation.vllm.outcomes import Affected
from penstock.instrumentation.vllm.peer_gate import PeerGate
from penstock.instrumentation.vllm.reports import find
from penstock.instrumentation.vllm.worker_orders import WorkerOrders, with_children

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.decisions import Decision
    from penstock.instrumentation.directives import Directives
    from penstock.instrumentation.policy_model import Policy
    from penstock.instrumentation.vllm.kv_failures import Plan
    from penstock.instrumentation.vllm.outcomes import Cause
    from penstock.instrumentation.vllm.requests import RequestRecord
    from penstock.instrumentation.vllm.scheduler_observer import SchedulerObserver


class Admission(Enum):
    """What a request may do that could load from a peer."""

    AS_ASKED = "as the connector answered"
    LOCAL = "compute its prompt here"
    FAIL = "fail, at the end of this step"


class LoadControl:
    """The remote loads of one scheduler."""

    def __init__(self, scheduler: Any, observer: SchedulerObserver) -> None:
        """Control *scheduler*, which is built but has not run, and tell what happens by *observer*."""
        self._scheduler = scheduler
        self._observer = observer
        self._judge = Judge(
            own=Outcome.RECOMPUTED if scheduler.recompute_kv_load_failures else Outcome.FAILED
        )
        self._orders = WorkerOrders()
        self._gate = PeerGate()
        self._deadlines = LoadDeadlines(self._orders)
        self._transfers = KvTransfers(scheduler, observer)
        self._failures = KvFailures(
            scheduler,
            external_tokens=lambda request: observer.record_of(request).external_tokens,
            timed_out=lambda request_id: self._deadlines.overdue(request_id) is not None,
            settle=self._settle,
        )
        # Requests that fail, and what their clients are told.
        self._failing: dict[str, str] = {}
        # Reported in this step: over their deadline, with a transfer in flight.
        self._pinned: frozenset[str] = frozenset()
        self.fill = self._gate.fill

    def follow(self, policy: Policy, directives: Directives) -> None:
        """Take in what came into force; between two steps, on any thread."""
        self._judge.follow(policy)
        self._deadlines.follow(policy)
        self._gate.follow(policy, directives)
        self._orders.follow(policy, directives)

    # The connector

    def admit(self, request: Any, local_tokens: int, external_tokens: int) -> Admission:
        """Decide about a request that is about to load *external_tokens* behind *local_tokens*, or to tell its peer that it need not."""
        if request.request_id in self._failing:
            self._fail(request.request_id)
            return Admission.FAIL
        record = self._observer.record_of(request)
        record.local_tokens = local_tokens
        if external_tokens and record.stays_local:
            return Admission.LOCAL
        params = request.kv_transfer_params or {}
        if record.peer is None or not params.get("do_remote_prefill"):
            return Admission.AS_ASKED
        if not external_tokens:
            self.forget_peer(request)
            return Admission.AS_ASKED
        if self._gate.admit(record).remote:
            return Admission.AS_ASKED
        params["do_remote_prefill"] = False
        record.begin_load(external_tokens)
        affected = Affected(request.request_id, local_tokens, external_tokens, trigger=Trigger.QUARANTINE)
        decision = self._decide(record, affected, self._gate.cause(record.peer.address))
        return Admission.LOCAL if decision.outcome is Outcome.RECOMPUTED else Admission.FAIL

    def forget_peer(self, request: Any) -> None:
        """Let a request go without a word to its peer, if that is quarantined: its lease there runs out by itself."""
        params = request.kv_transfer_params
        record = self._observer.record_of(request)
        if params and record.peer is not None and self._gate.is_open(record.peer.address):
            params["do_remote_prefill"] = False

    def load_begins(self, request: Any, external_tokens: int) -> None:
        """Note that a request got its blocks, to load *external_tokens* into them or none."""
        record = self._observer.record_of(request)
        record.stays_local = False
        if external_tokens:
            record.begin_load(external_tokens)
            self._gate.load_begins(record)
            self._transfers.begins(request.request_id, record.local_tokens, external_tokens)

    def attach(self, metadata: Any) -> None:
        """Put the orders for the workers on a step's *metadata*."""
        for each in with_children(metadata):
            self._gate.silence(each)
        self._orders.attach(metadata)

    # The scheduler

    def parked(self, request_id: str) -> None:
        """Note that a request waits for its load."""
        self._deadlines.parked(request_id)

    def check_deadlines(self) -> None:
        """Look who has waited for too long, once in each step."""
        self._deadlines.check()

    def no_longer_parked(self, request_id: str) -> None:
        """Note that a request's load has ended, however it did."""
        self._deadlines.ended(request_id)

    def reported(self, output: Any) -> None:
        """Learn from what the workers say about the loads of a step: which have begun, failed, ended well."""
        found = list(find(output.kv_connector_worker_meta))
        self._pinned = frozenset(request_id for report in found for request_id in report.pinned)
        for report in found:
            for request_id, _ in report.began:
                self._deadlines.began(request_id)
        for failure in (
            *(each for report in found for each in report.failures),
            *self._transfers.reported(found),
        ):
            record = self._observer.record(failure.request_id)
            if record is not None and record.failure is None:
                record.failure = failure
                self._gate.load_failed(record)
        for request_id in output.finished_recving or ():
            self._transfers.ended(request_id)
            record = self._observer.record(request_id)
            if record is not None and record.failure is None and request_id not in output.failed_recving:
                self._gate.load_ended(record)

    def plan(self, output: Any) -> Plan | None:
        """Decide about the failed loads in *output*; None where vLLM's own configuration does."""
        if not output.failed_recving and not output.invalid_block_ids and not self._pinned:
            return None
        plan = self._failures.plan(output.failed_recving, output.invalid_block_ids, self._pinned)
        if plan is not None:
            for request_id in plan.failed:
                self._fail(request_id)
        return plan

    def mark(self, outputs: Mapping[int, Any]) -> None:
        """Tell the clients of the requests that have failed in this step why."""
        if not self._failing:
            return
        client_error.mark(outputs, self._failing)
        for request_id in [each for each in self._failing if each not in self._scheduler.requests]:
            del self._failing[request_id]

    def left(self, request: Any) -> None:
        """Forget a request that has finished."""
        record = self._observer.record(request.request_id)
        self._deadlines.ended(request.request_id)
        self._transfers.ended(request.request_id)
        if record is not None:
            self._gate.left(record)

    # Decisions

    def _settle(self, request: Any, affected: Affected) -> Decision:
        record = self._observer.record_of(request)
        if affected.collateral and not record.collateral:
            record.begin_load(0, collateral=True)
        record.timed_out = record.timed_out or affected.trigger is Trigger.DEADLINE
        decision = self._decide(record, affected, outcomes.cause_of(record, affected))
        # Asked again, a connector would load what has just failed: once it computes for itself.
        if decision.outcome is Outcome.RECOMPUTED and decision.decided_by is not DecidedBy.VLLM:
            record.stays_local = True
        return decision

    def _decide(self, record: RequestRecord, affected: Affected, cause: Cause) -> Decision:
        settled = self._judge.judge(record, affected)
        decision = settled.decision
        if settled.first:
            self._observer.decided(record, affected, decision, cause, self._judge.policy.hash)
        if decision.outcome is Outcome.FAILED and decision.decided_by is not DecidedBy.VLLM:
            peer = record.failure.peer if record.failure is not None else record.peer
            self._failing[record.request_id] = client_error.describe(cause, peer, decision.reason)
            if affected.trigger is Trigger.QUARANTINE:
                self._fail(record.request_id)
        return decision

    def _fail(self, request_id: str) -> None:
        """Let vLLM finish a request with an error in this step's update, as it does with encoder outputs that do not fit."""
        self._scheduler.encoder_cache_mismatch_reqs.add(request_id)
