"""Decides about requests that cannot have their encoder outputs, reports the outcome, and lets them fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.recovery import FailingRequests, client_error, rewind
from penstock.instrumentation.vllm.requests import outcomes
from penstock.rules import HELD, NO_POLICY, DecidedBy, Decision, EcLoss, Outcome, decide_ec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.instrumentation.vllm.requests import Affected, Cause, SchedulerObserver
    from penstock.rules import Policy


class EcFailureDecider:
    """Decides for one scheduler; on its thread, inside a step.

    Attributes:
        policy: the policy in force.
        failing: requests that are about to fail, and what their clients learn.

    """

    def __init__(
        self,
        scheduler: Any,
        observer: SchedulerObserver,
        *,
        connector: str,
        own: Outcome,
        wait_ns: Callable[[str], int | None],
    ) -> None:
        """Decide by *own* where no policy names an action; *connector* is the name that outcomes carry.

        *wait_ns* returns in how many nanoseconds the peer of an address may be asked again, None for never.
        """
        self.policy: Policy = NO_POLICY
        self._observer = observer
        self._connector = connector
        self._own = own
        self._wait_ns = wait_ns
        self.failing = FailingRequests(scheduler)

    @property
    def has_rule(self) -> bool:
        """Whether the policy in force names an action for failed loads."""
        rule = self.policy.ec_load_failure
        return rule is not None and rule.action is not None

    def decide(self, request: Any, affected: Affected, cause: Cause) -> Decision:
        """Decide about a request and report the outcome; one that must fail does so in this step's update."""
        policy = self.policy if runtime.active else NO_POLICY
        # What counts is what the request has lost in all: its items may be lost one after the other.
        record = self._observer.record_of(request)
        record.ec_lost += len(affected.items)
        loss = EcLoss(record.ec_lost, affected.local_media, affected.exported, affected.trigger)
        decision = decide_ec(loss, default=self._own, policy=policy, observed=policy.observed)
        if affected.held:
            decision = rewind.fail_instead(decision, HELD)
        self._report(request, affected, decision, cause)
        if decision.outcome is Outcome.FAILED:
            self._explain(affected, decision, cause)
            self.failing.fail(affected.request_id)
        return decision

    def failed_by_connector(self, request: Any, affected: Affected, cause: Cause, *, explain: bool) -> None:
        """Report the outcome of a request that the connector itself fails; with *explain* its client gets the reason."""
        why = "an item cannot be had" if affected.local_media else "an item cannot be had, nor encoded here"
        decision = Decision(Outcome.FAILED, DecidedBy.VLLM, f"{why}; the connector gave the request up")
        self._report(request, affected, decision, cause)
        if explain:
            self._explain(affected, decision, cause)

    def recomputed_by_connector(self, request: Any, affected: Affected, cause: Cause) -> None:
        """Report the outcome of a request that the connector itself has encode its items here."""
        self._observer.record_of(request).ec_lost += len(affected.items)
        why = "an item cannot be had; the connector falls back to the request's own media"
        self._report(request, affected, Decision(Outcome.RECOMPUTED, DecidedBy.VLLM, why), cause)

    def _explain(self, affected: Affected, decision: Decision, cause: Cause) -> None:
        wait_ns = self._wait_ns(cause.peer.address) if cause.peer is not None else 0
        error = client_error.describe(cause, cause.peer, decision, "EC", wait_ns=wait_ns)
        self.failing[affected.request_id] = error

    def _report(self, request: Any, affected: Affected, decision: Decision, cause: Cause) -> None:
        record = self._observer.record_of(request)
        record.ec_attempt += 1
        if decision.outcome is Outcome.RECOMPUTED:
            ends = _ends_of(request, affected.items)
            self._observer.on_lost(request.request_id, max(affected.kept + affected.lost, *ends))
        fields = outcomes.outcome_fields(
            affected,
            decision,
            cause,
            channel=c.CHANNEL_EC,
            attempt=record.ec_attempt,
            peer=cause.peer,
            connector=self._connector,
            policy_hash=self.policy.hash,
        )
        self._observer.emit_outcome(fields, affected.request_id, rehearsal=cause.rehearsal)


def _ends_of(request: Any, items: Sequence[str]) -> list[int]:
    """Return the token behind each input of a request that is one of *items*, and 0."""
    places = (each.mm_position for each in request.mm_features if each.identifier in items)
    return [0, *(place.offset + place.length for place in places)]
