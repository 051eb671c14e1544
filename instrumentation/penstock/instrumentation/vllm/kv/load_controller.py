"""What one scheduler does about remote KV loads: admission, deadlines, failures. It joins the parts; each decides for itself.

The scheduler's mixin and the connector's talk to it inside the guard. While Penstock is paused nobody does, and vLLM's own
configuration holds.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import Action, DecidedBy, Decision, Outcome, Trigger
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base import KvTransfers
from penstock.instrumentation.vllm.kv.deadlines import KvDeadlines
from penstock.instrumentation.vllm.kv.decider import WITHOUT_MEDIA, KvFailureDecider
from penstock.instrumentation.vllm.kv.failure_planner import KvFailurePlanner, exports
from penstock.instrumentation.vllm.kv.peer_gate import PeerGate
from penstock.instrumentation.vllm.kv.unconfirmed_steps import UnconfirmedSteps
from penstock.instrumentation.vllm.messages import StepMetadata, find, with_children
from penstock.instrumentation.vllm.recovery import client_error
from penstock.instrumentation.vllm.requests import Affected, Cause, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.resilience import Orders, Policy
    from penstock.instrumentation.vllm.kv.failure_planner import RecoveryPlan
    from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
    from penstock.instrumentation.vllm.requests import RequestRecord, SchedulerObserver

_REWINDING: Final = frozenset({Action.RECOMPUTE, Action.AUTO})
_LEFT_OUT: Final = Cause(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_EVICTED)


class LoadAdmission(Enum):
    """What a request may do that could load from a peer."""

    AS_ASKED = "as the connector answered"
    LOCAL = "compute its prompt here"
    FAIL = "fail, at the end of this step"


class KvLoadController:
    """The remote loads of one scheduler.

    Attributes:
        failing: requests that fail, and what their clients are told.

    """

    def __init__(self, scheduler: Any, observer: SchedulerObserver, media: WorkerEncoderInputs) -> None:
        """Control *scheduler*, which is built but has not run, and tell what happens by *observer*; *media*: what its workers know."""
        self._scheduler = scheduler
        self._observer = observer
        self._media = media
        self._sync = UnconfirmedSteps(scheduler)
        # What has run on a failed load of such a connector fails anyway.
        self._rewinds = not exports(scheduler)
        self._judge = KvFailureDecider(
            own=Outcome.RECOMPUTED if scheduler.recompute_kv_load_failures else Outcome.FAILED
        )
        self._orders = StepMetadata()
        self._gate = PeerGate()
        self._deadlines = KvDeadlines(self._orders)
        self._transfers = KvTransfers(scheduler, observer)
        self._failures = KvFailurePlanner(
            scheduler,
            external_tokens=lambda request: observer.record_of(request).external_tokens,
            timed_out=lambda request_id: self._deadlines.overdue(request_id) is not None,
            media=media,
            speaks=lambda: self._judge.rules,
            settle=self._settle,
        )
        self.failing: dict[str, str] = {}
        # Reported in this step: over their deadline, with a transfer in flight.
        self._pinned: frozenset[str] = frozenset()
        self.fill = self._gate.fill
        # Looks who has waited for too long, once in each step.
        self.check_deadlines = self._deadlines.check

    def follow(self, policy: Policy, directives: Orders) -> None:
        """Take in what came into force; between two steps, on any thread."""
        self._judge.follow(policy)
        self._deadlines.follow(policy)
        self._gate.follow(policy, directives)
        self._orders.follow(policy, directives)

    # The connector

    def admit(self, request: Any, local_tokens: int, external_tokens: int) -> LoadAdmission:
        """Decide about a request that is about to load *external_tokens* behind *local_tokens*, or to tell its peer that it need not."""
        if request.request_id in self.failing:
            self._fail(request.request_id)
            return LoadAdmission.FAIL
        record = self._observer.record_of(request)
        record.local_tokens = local_tokens
        if external_tokens and record.stays_local:
            return LoadAdmission.LOCAL
        params = request.kv_transfer_params or {}
        if record.peer is None or not params.get("do_remote_prefill"):
            return LoadAdmission.AS_ASKED
        if not external_tokens:
            self.forget_peer(request)
            return LoadAdmission.AS_ASKED
        if self._gate.admit(record).remote:
            return LoadAdmission.AS_ASKED
        params["do_remote_prefill"] = False
        record.begin_load(external_tokens)
        affected = Affected(request.request_id, local_tokens, external_tokens, trigger=Trigger.QUARANTINE)
        decision = self._decide(record, affected, self._gate.cause(record.peer.address))
        return LoadAdmission.LOCAL if decision.outcome is Outcome.RECOMPUTED else LoadAdmission.FAIL

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
            self._transfers.on_load_started(request.request_id, record.local_tokens, external_tokens)
            self._sync.begins(request.request_id)

    def attach(self, metadata: Any) -> None:
        """Put the orders for the workers on a step's *metadata*."""
        if self._gate.has_open:
            for each in with_children(metadata):
                self._gate.silence(each)
        self._orders.attach(metadata)

    # The scheduler

    def parked(self, request_id: str) -> None:
        """Note that a request waits for its load."""
        self._deadlines.parked(request_id)
        self._sync.parked(request_id)

    def scheduled(self, output: Any) -> None:
        """Note whether the step that was just scheduled loads something itself."""
        self._sync.scheduled(output)

    def executed(self, output: Any) -> None:
        """Note that the result of the step with that scheduler's *output* is taken in."""
        self._sync.executed(output)

    @property
    def needs_media(self) -> bool:
        """Whether a request that is new in this step may be rewound for the loads that are under way, behind any of its inputs."""
        rule = self._judge.policy.kv_load_failure
        rewinds = self._rewinds and runtime.active and rule is not None and rule.action in _REWINDING
        return rewinds and bool(self._sync)

    def refuses(self, request: Any, indexes: Iterable[int]) -> bool:
        """Fail a request of which vLLM would encode these inputs, if the workers lack the media of one; tell whether it fails.

        Where no policy speaks vLLM's own end stays; what a policy has sent back is held to it in any case.
        """
        if not self._media.lacking(request, indexes):
            return False
        record = self._observer.record_of(request)
        if not record.rewound and not self._speaks:
            return False
        if request.request_id not in self.failing:
            # Not the load that was decided about: what could have been encoded then cannot be now.
            record.begin_load(0)
            record.decided = record.present_attempt
            affected = Affected(request.request_id, request.num_computed_tokens, 0)
            decision = Decision(Outcome.FAILED, DecidedBy.POLICY, WITHOUT_MEDIA)
            self._observer.decided(record, affected, decision, _LEFT_OUT, self._judge.policy.hash)
            self.failing[request.request_id] = client_error.describe(_LEFT_OUT, record.peer, decision.reason)
        self._fail(request.request_id)
        return True

    @property
    def _speaks(self) -> bool:
        """Whether a policy says what is done about failed loads."""
        deferral = self._judge.policy.deferral
        return runtime.active and (
            self._judge.rules or (deferral is not None and deferral.on_timeout is not None)
        )

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
            *self._transfers.on_reports(found),
        ):
            record = self._observer.record(failure.request_id)
            if record is not None and record.failure is None:
                record.failure = failure
                self._gate.load_failed(record)
        for request_id in output.finished_recving or ():
            self._transfers.on_load_finished(request_id)
            record = self._observer.record(request_id)
            if record is not None and record.failure is None and request_id not in output.failed_recving:
                self._gate.load_ended(record)

    def plan(self, output: Any) -> RecoveryPlan | None:
        """Decide about the failed loads in *output*; None where vLLM's own configuration does."""
        if not output.failed_recving and not output.invalid_block_ids and not self._pinned:
            return None
        plan = self._failures.plan(
            output.failed_recving, output.invalid_block_ids, self._pinned, self._sync.ghosts
        )
        if plan is not None:
            for request_id in plan.failed:
                self._fail(request_id)
        return plan

    def mark(self, outputs: Mapping[int, Any]) -> None:
        """Tell the clients of the requests that have failed in this step why."""
        client_error.mark(outputs, self.failing)
        for request_id in [each for each in self.failing if each not in self._scheduler.requests]:
            del self.failing[request_id]

    def leaving(self, request: Any) -> None:
        """Note that a request is about to lose its blocks."""
        self._sync.leaving(request)

    def left(self, request: Any) -> None:
        """Forget a request that has finished."""
        record = self._observer.record(request.request_id)
        self._deadlines.ended(request.request_id)
        self._transfers.on_load_finished(request.request_id)
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
            record.stays_local = record.rewound = True
        return decision

    def _decide(self, record: RequestRecord, affected: Affected, cause: Cause) -> Decision:
        settled = self._judge.judge(record, affected)
        decision = settled.decision
        if settled.first:
            self._observer.decided(record, affected, decision, cause, self._judge.policy.hash)
        if decision.outcome is Outcome.FAILED and decision.decided_by is not DecidedBy.VLLM:
            failure = record.failure
            peer = failure.peer if failure is not None else record.peer
            caused_by = failure.culprit.peer if failure is not None and failure.culprit is not None else None
            self.failing[record.request_id] = client_error.describe(
                cause, peer, decision.reason, caused_by=caused_by
            )
            if affected.trigger is Trigger.QUARANTINE:
                self._fail(record.request_id)
        return decision

    def _fail(self, request_id: str) -> None:
        """Let vLLM finish a request with an error in this step's update, as it does with encoder outputs that do not fit."""
        self._scheduler.encoder_cache_mismatch_reqs.add(request_id)
