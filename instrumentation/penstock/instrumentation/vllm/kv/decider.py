"""Decides about each failed KV load by the policy in force: one recompute budget for the engine, one decision for each attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.instrumentation.resilience import (
    NO_POLICY,
    Budgets,
    DecidedBy,
    DecisionLog,
    KvLoss,
    RecomputeBudget,
    decide_kv,
)
from penstock.instrumentation.vllm.recovery import rewind
from penstock.rules import HELD, PINNED, WITHOUT_MEDIA

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Decision, LoggedDecision, Outcome, Policy
    from penstock.instrumentation.vllm.requests import Affected, RequestRecord


class KvFailureDecider:
    """Decides for one scheduler; on its thread, inside a step.

    Attributes:
        policy: the policy in force.

    """

    def __init__(self, *, own: Outcome) -> None:
        """Decide by *own*, vLLM's ``kv_load_failure_policy``, where no policy does."""
        self.policy: Policy = NO_POLICY
        self._own = own
        self._budgets = Budgets(RecomputeBudget(), RecomputeBudget())
        self._log = DecisionLog()

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the policy that came into force."""
        self.policy = policy
        self._budgets.on_policy_change(policy)

    @property
    def decides_all(self) -> bool:
        """Whether the policy says what is done about every failed load."""
        rule = self.policy.kv_load_failure
        return rule is not None and rule.action is not None

    def decide(self, record: RequestRecord, affected: Affected) -> LoggedDecision:
        """Decide about the present load of a request, or return what was decided about it before."""
        settled = self._log.get_or_decide(
            record.request_id, record.present_attempt, lambda: self._decide(affected)
        )
        record.decided = record.present_attempt
        return settled

    def give_up(self, record: RequestRecord, decision: Decision) -> LoggedDecision:
        """Fail a load that was to be recomputed, because a deadline came before its last transfer had ended."""
        failed = replace(rewind.fail_instead(decision, PINNED), decided_by=DecidedBy.DEADLINE)
        return self._log.revise(record.request_id, record.present_attempt, failed)

    def _decide(self, affected: Affected) -> Decision:
        decision = decide_kv(
            KvLoss(affected.lost, affected.exported, affected.trigger),
            vllm=self._own,
            policy=self.policy,
            observed=self.policy.observed,
            budgets=self._budgets,
        )
        if affected.pinned or affected.held:
            return rewind.fail_instead(decision, PINNED if affected.pinned else HELD)
        if affected.without_media and decision.decided_by is not DecidedBy.VLLM:
            return rewind.fail_instead(decision, WITHOUT_MEDIA)
        return decision
