"""Judges requests that cannot have their encoder outputs by the policy in force, tells the outcome, and lets them fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import NO_POLICY, DecidedBy, Decision, EcLoss, Outcome, decide_ec
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import outcomes
from penstock.instrumentation.vllm.kv.decider import HELD
from penstock.instrumentation.vllm.recovery import client_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.resilience import Policy
    from penstock.instrumentation.vllm.ec.outcomes import EcAffected, EcCause
    from penstock.instrumentation.vllm.requests import SchedulerObserver


class EcFailureDecider:
    """Decides for one scheduler; on its thread, inside a step.

    Attributes:
        policy: the policy in force.

    """

    def __init__(self, scheduler: Any, observer: SchedulerObserver, *, connector: str, own: Outcome) -> None:
        """Judge by *own* where no policy names an action; *connector* is the name that outcomes carry."""
        self.policy: Policy = NO_POLICY
        self._scheduler = scheduler
        self._observer = observer
        self._connector = connector
        self._own = own
        # Requests that fail, and what their clients are told.
        self._failing: dict[str, str] = {}

    def is_failing(self, request_id: str) -> bool:
        """Tell whether a request is about to fail."""
        return request_id in self._failing

    def decide(self, request: Any, affected: EcAffected, cause: EcCause) -> Decision:
        """Decide about a request and tell the outcome; one that must fail does so in this step's update."""
        policy = self.policy if runtime.active else NO_POLICY
        # What counts is what the request has lost in all: its items may be lost one after the other.
        record = self._observer.record_of(request)
        record.ec_lost += len(affected.items)
        loss = EcLoss(record.ec_lost, affected.local_media, affected.exported, affected.trigger)
        decision = decide_ec(loss, default=self._own, policy=policy, observed=policy.observed)
        if affected.held and decision.outcome is Outcome.RECOMPUTED:
            decision = replace(decision, outcome=Outcome.FAILED, reason=f"{decision.reason}; {HELD}")
        self._tell(request, affected, decision, cause)
        if decision.outcome is Outcome.FAILED:
            self._explain(affected, decision, cause)
            # vLLM's own way to fail a single request.
            self._scheduler.encoder_cache_mismatch_reqs.add(affected.request_id)
        return decision

    def failed_by_connector(
        self, request: Any, affected: EcAffected, cause: EcCause, *, explain: bool
    ) -> None:
        """Tell the outcome of a request that the connector itself fails; with *explain* its client is told why."""
        why = "an item cannot be had" if affected.local_media else "an item cannot be had, nor encoded here"
        decision = Decision(Outcome.FAILED, DecidedBy.VLLM, f"{why}; the connector gave the request up")
        self._tell(request, affected, decision, cause)
        if explain:
            self._explain(affected, decision, cause)

    def _explain(self, affected: EcAffected, decision: Decision, cause: EcCause) -> None:
        text = client_error.describe(cause, cause.peer, decision.reason, "EC")
        self._failing[affected.request_id] = text

    def _tell(self, request: Any, affected: EcAffected, decision: Decision, cause: EcCause) -> None:
        record = self._observer.record_of(request)
        record.ec_attempt += 1
        if not runtime.active:
            return
        fields = outcomes.outcome_fields(
            affected,
            decision,
            cause,
            attempt=record.ec_attempt,
            policy_hash=self.policy.hash,
            connector=self._connector,
        )
        runtime.emit_event(
            "load_outcome",
            fields,
            component=c.COMPONENT_SCHEDULER,
            request_id=affected.request_id,
            rehearsal=cause.rehearsal,
        )

    def mark(self, outputs: Mapping[int, Any]) -> None:
        """Tell the clients of the requests that have failed in this step why."""
        if not self._failing:
            return
        client_error.mark(outputs, self._failing)
        for request_id in [each for each in self._failing if each not in self._scheduler.requests]:
            del self._failing[request_id]
