"""Controls the remote KV loads of one scheduler: admission, deadlines, failures. It joins the parts; each decides for itself.

The scheduler's session and the connector's mixin call it inside the guard. While Penstock is paused they do not, and vLLM's own
configuration holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import delayed_load, delays_loads, failed_receives, tells_of_unread
from penstock.instrumentation.vllm.kv.abandoned_loads import AbandonedLoads
from penstock.instrumentation.vllm.kv.base import KvStepLoads, KvTransfers
from penstock.instrumentation.vllm.kv.decider import KvDeadlines, KvFailureDecider
from penstock.instrumentation.vllm.kv.failure_planner import (
    WAITING_FOR_KV,
    KvFailurePlanner,
    UnconfirmedKvLoads,
)
from penstock.instrumentation.vllm.kv.integrity import KvVerifier
from penstock.instrumentation.vllm.kv.overdue_loads import OverdueLoads, pulls
from penstock.instrumentation.vllm.kv.reflexes import KvReflexes
from penstock.instrumentation.vllm.kv.request_peers import LoadAdmission, RequestPeers, keep_local
from penstock.instrumentation.vllm.kv.tier_sources import TierSources
from penstock.instrumentation.vllm.messages import StepMetadata, find_reports, with_children
from penstock.instrumentation.vllm.recovery import FailingRequests, client_error, rewind
from penstock.instrumentation.vllm.requests import Affected, Cause, UnreportedOutcome, outcomes
from penstock.rules import WITHOUT_MEDIA, Action, DecidedBy, Decision, Outcome, Trigger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from penstock.instrumentation.orders import Orders
    from penstock.instrumentation.vllm.admission import PeerGate
    from penstock.instrumentation.vllm.kv.failure_planner import RecoveryPlan
    from penstock.instrumentation.vllm.messages import LoadFailure
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.recovery import WorkerEncoderInputs
    from penstock.instrumentation.vllm.requests import RequestRecord, SchedulerObserver
    from penstock.rules import Policy

_REWINDING: Final = frozenset({Action.RECOMPUTE, Action.AUTO})
_TIMED_OUT: Final = frozenset({Trigger.DEADLINE, Trigger.START_WAIT})
_NONE: Final[AbstractSet[Any]] = frozenset()
_LEFT_OUT: Final = Cause(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_EVICTED)


class KvLoadController:
    """The remote loads of one scheduler.

    Attributes:
        failing: requests that are about to fail, and what their clients learn.
        deadlines: requests that wait for a load.
        unconfirmed: steps that load something themselves and have no result yet.
        verifier: loads that are compared with the sender's digest, and digests for readers.
        abandoned: loads that go on although a deadline has given them up.
        reflexes: what is given up, or left out, by what loads and computing take here.
        sources: requests whose KV may come through a P2P tier.

    """

    def __init__(
        self, scheduler: Any, observer: SchedulerObserver, media: WorkerEncoderInputs, gate: PeerGate
    ) -> None:
        """Control *scheduler*, which is built but has not run.

        Args:
            scheduler: vLLM's.
            observer: its requests.
            media: what its workers know of inputs.
            gate: the peers that it may load from.

        """
        self._scheduler = scheduler
        self._observer = observer
        self._media = media
        self.unconfirmed = UnconfirmedKvLoads(scheduler)
        self.verifier = KvVerifier(scheduler)
        # A request that has run on a failed load of a connector that exports blocks fails anyway.
        self._rewinds = not rewind.exports(scheduler)
        self._decider = KvFailureDecider(
            own=Outcome.RECOMPUTED if scheduler.recompute_kv_load_failures else Outcome.FAILED
        )
        self._orders = StepMetadata()
        self._overdue = OverdueLoads(scheduler, observer)
        self.reflexes = KvReflexes(
            observer,
            able=self._rewinds and pulls(scheduler.connector),
            can_end=self._overdue.worker_ends,
            has_room=self._decider.has_room,
        )
        self._peers = RequestPeers(gate, self.reflexes)
        self.deadlines = KvDeadlines(self._orders, self._overdue.worker_ends, self.reflexes)
        self.sources = TierSources(scheduler, observer, self._peers, self.deadlines, self._settle_source)
        self.abandoned = AbandonedLoads()
        self._delays, self._tells = delays_loads(scheduler), tells_of_unread()
        self._transfers = KvTransfers(scheduler, observer)
        self._planner = KvFailurePlanner(
            scheduler,
            external_tokens=lambda request: observer.record_of(request).external_tokens,
            trigger=lambda name: self._overdue.trigger(name, self.deadlines),
            media=media,
            policy_decides=lambda: self._decider.decides_all,
            settle=self._settle,
        )
        self.failing = FailingRequests(scheduler)
        # Reported in this step: over their deadline, with a transfer in flight.
        self._pinned: frozenset[str] = frozenset()

    def on_policy_change(self, policy: Policy, orders: Orders) -> None:
        """Apply the policy and the orders that came into force; between two steps, on any thread."""
        self._decider.on_policy_change(policy)
        self.deadlines.on_policy_change(policy)
        self._orders.on_policy_change(policy, orders)
        self.verifier.on_policy_change(policy)

    # The connector

    def admit(self, request: Any, local_tokens: int, external_tokens: int) -> LoadAdmission:
        """Decide about a request that is about to load *external_tokens* behind *local_tokens*, or to release its peer's blocks."""
        if request.request_id in self.failing:
            self.failing.fail(request.request_id)
            return LoadAdmission.FAIL
        record = self._observer.record_of(request)
        record.local_tokens = local_tokens
        if external_tokens and record.stays_local:
            return LoadAdmission.LOCAL
        params = request.kv_transfer_params or {}
        if record.peer is None or not params.get("do_remote_prefill"):
            return LoadAdmission.AS_ASKED
        if not external_tokens:
            if self._peers.is_open(record.peer.address):
                keep_local(self._scheduler.connector, request)
            return LoadAdmission.AS_ASKED
        reflex = ""
        if self._peers.admit(record).remote:
            if self.reflexes.active and not record.probe:
                reflex = self.reflexes.leaves_out(request, record, external_tokens)
            if not reflex:
                return LoadAdmission.AS_ASKED
        if not (reflex and self._tells):
            keep_local(self._scheduler.connector, request)
        self._begin_load(record, external_tokens)
        # Of one that is left out vLLM, where it can, tells the peer, which is well, that it may free its blocks.
        record.reflex, record.stays_local = reflex, bool(reflex)
        trigger = Trigger.SLOW_PEER if reflex else Trigger.QUARANTINE
        affected = Affected(request.request_id, local_tokens, external_tokens, trigger=trigger)
        cause = Cause(0, 0) if reflex else self._peers.cause(record.peer.address)
        decision = self._decide(record, affected, cause)
        return LoadAdmission.LOCAL if decision.outcome is Outcome.RECOMPUTED else LoadAdmission.FAIL

    def forget_peer(self, request: Any) -> None:
        """Keep the connector from notifying the peer of a request, if that is quarantined: its lease there runs out by itself."""
        params = request.kv_transfer_params
        record = self._observer.record_of(request)
        if params and record.peer is not None and self._peers.is_open(record.peer.address):
            params["do_remote_prefill"] = False

    def on_allocated(self, request: Any, external_tokens: int) -> None:
        """Record that a request got its blocks, to load *external_tokens* into them or none."""
        request_id = request.request_id
        # A load that vLLM starts only now, steps after the request got its blocks (``on_waiting``).
        late = self._delays and request.status.name == WAITING_FOR_KV
        if not late or not self._transfers.is_open(request_id):
            self._on_load(request, external_tokens)
        if external_tokens:
            if not late:
                self.unconfirmed.on_allocated(request_id)
            self.verifier.on_load_begun(request_id)

    def _on_load(self, request: Any, external_tokens: int) -> None:
        """Record that a request has blocks, to load *external_tokens* into them or none."""
        record = self._observer.record_of(request)
        record.stays_local = False
        if external_tokens:
            self._begin_load(record, external_tokens)
            self._peers.on_load_begun(record)
            self._transfers.on_load_started(request.request_id, record.local_tokens, external_tokens)

    def attach(self, metadata: Any, output: Any) -> None:
        """Put the orders for the workers on a step's *metadata*; *output* is the scheduler's."""
        if self._peers.has_open:
            for each in with_children(metadata):
                self._peers.drop_heartbeats(each)
        self._orders.attach(metadata)
        self.verifier.attach(metadata, output)

    # The scheduler

    def origin(self, request: Any) -> Peer:
        """Return the other end of the load that a request has just begun: a place of this machine, or its peer."""
        place = KvStepLoads.place_in(self._scheduler.connector, request.request_id)
        return self._observer.record_of(request).origin(place)

    def on_waiting(self, request: Any) -> None:
        """Start the deadline of a request that waits for its load; one that starts later has begun as far as clocks and records go."""
        delayed = delayed_load(self._scheduler, request.request_id) if self._delays else 0
        if delayed:
            self._on_load(request, delayed)
        self.deadlines.on_waiting(request.request_id)
        # What vLLM itself has put off says nothing about the peer.
        if self.reflexes.active and not delayed:
            self.reflexes.on_waiting(request)
        self.unconfirmed.on_waiting(request.request_id)

    def after_schedule(self, output: Any) -> None:
        """Record whether the step that was just scheduled loads something itself."""
        self.unconfirmed.after_schedule(output)

    def on_step_result(self, output: Any) -> None:
        """Record that the result of the step with that scheduler's *output* is in."""
        self.unconfirmed.confirm(output)

    @property
    def needs_media(self) -> bool:
        """Whether a request that is new in this step may be rewound for the loads that are under way, behind any of its inputs."""
        rule = self._decider.policy.kv_load_failure
        rewinds = self._rewinds and runtime.active and rule is not None and rule.action in _REWINDING
        return rewinds and bool(self.unconfirmed)

    def refuses(self, request: Any, indexes: Iterable[int]) -> bool:
        """Fail a request of which vLLM would encode these inputs, if the workers lack the media of one; tell whether it fails.

        Without a policy vLLM's own behaviour stays, but not for a request that a policy has sent back.
        """
        if not self._media.lacking(request, indexes):
            return False
        record = self._observer.record_of(request)
        if not record.rewound and not (runtime.active and self._decider.decides_some):
            return False
        if request.request_id not in self.failing:
            # A new attempt: the load was decided about before, and the input could have been encoded then.
            self._begin_load(record, 0)
            record.decided = record.present_attempt
            affected = Affected(request.request_id, request.num_computed_tokens, 0)
            field = "kvLoadFailure.action"
            name = self._decider.policy.name_of(field)
            decision = Decision(Outcome.FAILED, DecidedBy.POLICY, WITHOUT_MEDIA, field, policy=name)
            self._observer.on_load_decided(record, affected, decision, _LEFT_OUT, self._decider.policy.hash)
            self.failing[request.request_id] = client_error.describe(_LEFT_OUT, record.peer, decision)
        self.failing.fail(request.request_id)
        return True

    def on_ready(self, request_id: str) -> None:
        """Record that a request's load has ended, however it did."""
        self.deadlines.on_ended(request_id)
        record = self._observer.record(request_id)
        if record is not None and record.unreported is not None:
            record.unreported = replace(record.unreported, ended=True)

    def on_worker_report(self, output: Any) -> None:
        """Apply the workers' report on the loads of a step: which have begun, failed, succeeded."""
        found = list(find_reports(output.kv_connector_worker_meta))
        self.verifier.on_reports(found)
        self._pinned = frozenset(request_id for report in found for request_id in report.pinned)
        for failure in (
            *(each for report in found for each in report.failures),
            *self._transfers.on_reports(found),
        ):
            record = self._observer.record(failure.request_id)
            if record is not None and record.failure is None:
                record.failure = failure
                self._peers.on_load_failed(record)
        for report in found:
            for request_id, _ in report.began:
                self.deadlines.on_began(request_id)
        for request_id in output.finished_recving or ():
            self._transfers.on_load_finished(request_id)
            if (record := self._observer.record(request_id)) is None:
                continue
            self._report_decided(record)
            if record.failure is None and request_id not in failed_receives(output):
                self._peers.on_load_ended(record)

    def plan(self, output: Any) -> RecoveryPlan | None:
        """Decide about the failed loads in *output*, and those that are given up; None where vLLM's own configuration does.

        *output* is None where the connector has told nothing.
        """
        failed, invalid, ended = failed_receives(output), _NONE, _NONE
        if output is not None:
            invalid, ended = output.invalid_block_ids or _NONE, output.finished_recving or _NONE
        pinned = self._pinned | self._give_up(ended) if self.deadlines.left else self._pinned
        self._pinned = frozenset()
        if not failed and not invalid and not pinned:
            return None
        plan = self._planner.plan(failed, invalid, pinned, self.unconfirmed.freed, ended)
        if plan is not None:
            for request_id in plan.failed:
                self.failing.fail(request_id)
        return plan

    def _give_up(self, ended: AbstractSet[str]) -> frozenset[str]:
        """Give up the overdue loads that no worker ends, but not those that have *ended* in this step, and look-ups."""
        left = list(self.deadlines.left.values())
        for each in left:
            # Only what the connector has just put off: a request that is not asked about waits for room.
            if each.request_id in self.deadlines.looking_up:
                self._give_up_look_up(each.request_id)
        return self._overdue.give_up(left, ended, self.abandoned, self._transfers, self._peers)

    def _give_up_look_up(self, request_id: str) -> None:
        """Fail a request whose connector does not say in time what there is to load."""
        record = self._observer.record(request_id)
        if record is not None and request_id not in self.failing:
            self._begin_load(record, 0)
            record.timed_out, record.connector = True, type(self._scheduler.connector).__name__
            self.sources.give_up(record)
            affected = Affected(request_id, 0, looking_up=True, trigger=Trigger.DEADLINE)
            self._decide(record, affected, outcomes.cause_of(record, affected))
        self.failing.fail(request_id)

    def before_free(self, request: Any) -> None:
        """Record that a request is about to lose its blocks."""
        self.unconfirmed.before_free(request)

    def on_finished(self, request: Any) -> None:
        """Forget a request that has finished."""
        record = self._observer.record(request.request_id)
        if self.abandoned.any and request.request_id in self.abandoned:
            # Its blocks are not free, or it would be forgotten.
            self.abandoned.on_pinned(request.request_id, self._observer.on_pinned(request.request_id))
        self.deadlines.on_ended(request.request_id)
        if self.sources.tiers:
            self.sources.on_finished(request.request_id)
        self._transfers.on_load_finished(request.request_id)
        if record is not None:
            self._peers.on_finished(record)
            failed = record.failure is not None
            found = self.verifier.on_finished(record.request_id, record.peer, failed=failed)
            record.verifications = [*record.verifications, *found]
            if record.unreported is not None and record.unreported.ended:
                self._report_decided(record)

    def on_blocks_freed(self, request_id: str) -> None:
        """Record that the blocks of a request are free, where a load has been abandoned."""
        self.abandoned.forget(request_id)
        self._transfers.forget(request_id)

    # Decisions

    def _settle(self, request: Any, affected: Affected) -> Decision:
        record = self._observer.record_of(request)
        if affected.collateral and not record.collateral:
            self._begin_load(record, 0, collateral=True)
        record.timed_out = record.timed_out or affected.trigger in _TIMED_OUT
        decision = self._decide(record, affected, outcomes.cause_of(record, affected))
        # A connector that is asked again would load what has just failed; once, the request computes it here.
        if decision.outcome is Outcome.RECOMPUTED and decision.decided_by is not DecidedBy.VLLM:
            record.stays_local = record.rewound = True
        return decision

    def _settle_source(
        self, record: RequestRecord, affected: Affected, cause: Cause, failure: LoadFailure | None
    ) -> None:
        """Decide about a request that gets nothing from its source: it has no blocks yet, and vLLM would compute its prompt."""
        self._begin_load(record, affected.lost)
        record.failure = failure
        decision = self._decide(record, affected, cause)
        if decision.outcome is Outcome.FAILED:
            self.failing.fail(record.request_id)

    def _decide(self, record: RequestRecord, affected: Affected, cause: Cause) -> Decision:
        settled, known = self._decider.decide(record, affected, self.reflexes.on_decided), record.unreported
        if affected.pinned and known is not None:
            settled, cause = self._decider.give_up(record, known.decision), known.cause
            affected = replace(known.affected, pinned=True, loading=False, trigger=affected.trigger)
        decision = settled.decision
        if settled.first:
            record.unreported = UnreportedOutcome(affected, decision, cause, self._decider.policy.hash)
            # A load that other ranks go on with cannot be recomputed before they end, which a deadline may forestall.
            if not affected.loading or decision.outcome is not Outcome.RECOMPUTED:
                self._report_decided(record)
        if decision.outcome is Outcome.FAILED and decision.decided_by is not DecidedBy.VLLM:
            peer, overdue = record.load_peer, self.deadlines.overdue(record.request_id)
            by_budget = decision.decided_by is DecidedBy.BUDGET
            wait_ns = self._decider.wait_ns(affected) if by_budget else self._peers.wait_ns(peer)
            self.failing[record.request_id] = client_error.describe(
                cause, peer, decision, caused_by=record.caused_by, overdue=overdue, wait_ns=wait_ns
            )
            if affected.trigger is Trigger.QUARANTINE:
                self.failing.fail(record.request_id)
        return decision

    def _begin_load(self, record: RequestRecord, external_tokens: int, *, collateral: bool = False) -> None:
        """Begin the next attempt; the present one's outcome may be unreported, if its load ended during a pause."""
        self._report_decided(record)
        record.begin_load(external_tokens, collateral=collateral)

    def _report_decided(self, record: RequestRecord) -> None:
        """Emit the outcome that was decided and not reported yet, if there is one."""
        known, record.unreported = record.unreported, None
        if known is not None:
            self._observer.on_load_decided(
                record, known.affected, known.decision, known.cause, known.policy_hash
            )
