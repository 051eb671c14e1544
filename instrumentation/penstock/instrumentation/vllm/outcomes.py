"""What is done about a failed load: which decision holds, and the one outcome that is reported of it.

Pure. A decision is taken once for each (request, channel, attempt): with several ranks a failure is reported more
than once, and what the first report led to stays, also when the policy changes in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation import constants as c
from penstock.instrumentation.policy_model import Action

if TYPE_CHECKING:
    from penstock.instrumentation.policy_model import Policy, PolicyBody
    from penstock.instrumentation.vllm.requests import RequestRecord

_OUTCOMES = {Action.RECOMPUTE: c.OUTCOME_RECOMPUTED, Action.FAIL: c.OUTCOME_FAILED}


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about failed KV loads in this step.

    Attributes:
        recompute: the value for vLLM's own switch, ``recompute_kv_load_failures``.
        decided_by: ``DECIDED_BY_*``.
        policy_hash: of the policy in force, empty for none.
        observed: what a policy in mode observe would do, or None.
        why_not: why the policy in force does not decide, empty where it does or says nothing.

    """

    recompute: bool
    decided_by: int
    policy_hash: str = ""
    observed: Action | None = None
    why_not: str = ""

    @property
    def outcome(self) -> int:
        """Return the ``OUTCOME_*`` of a request that this decision is applied to."""
        return c.OUTCOME_RECOMPUTED if self.recompute else c.OUTCOME_FAILED

    @property
    def reason(self) -> str:
        """Return why, in words."""
        action = Action.RECOMPUTE if self.recompute else Action.FAIL
        if self.decided_by == c.DECIDED_BY_POLICY:
            return f"the policy in force says {action.value}"
        own = f"vLLM's own kv_load_failure_policy says {action.value}"
        return f"{own}; {self.why_not}" if self.why_not else own


@dataclass(frozen=True, slots=True)
class Affected:
    """A request whose load failed: tokens whose state survives and tokens that were lost."""

    request_id: str
    kept: int
    lost: int


def action_of(body: PolicyBody | None) -> Action | None:
    """Return what a policy wants done about a failed KV load, or None where it leaves vLLM's own configuration."""
    if body is None or body.kv_load_failure is None:
        return None
    action = body.kv_load_failure.action
    return action if action in _OUTCOMES else None


def decide(policy: Policy, *, own_recompute: bool) -> Decision:
    """Return the decision of *policy*, or vLLM's own where it says nothing."""
    action = action_of(policy)
    observed = action_of(policy.observed)
    if action is None:
        return Decision(own_recompute, c.DECIDED_BY_VLLM, policy.hash, observed)
    return Decision(action is Action.RECOMPUTE, c.DECIDED_BY_POLICY, policy.hash, observed)


def overrule(decision: Decision, why_not: str) -> Decision:
    """Return vLLM's own decision in the place of a policy's that says the opposite."""
    return replace(decision, recompute=not decision.recompute, decided_by=c.DECIDED_BY_VLLM, why_not=why_not)


def settle(
    record: RequestRecord, affected: Affected, decision: Decision, connector: str
) -> dict[str, Any] | None:
    """Note the decision on *record* and return the fields of its ``LoadOutcome``.

    Returns None if this attempt's outcome is decided already.
    """
    if not _take(record):
        return None
    record.recomputing = decision.recompute
    fields = _fields(record, decision.outcome, decision.decided_by, connector)
    fields |= {
        "tokens_kept": affected.kept,
        "tokens_recomputed": affected.lost,
        "policy_hash": decision.policy_hash,
        "reason": decision.reason,
    }
    if decision.observed is not None:
        fields["observed_outcome"] = _OUTCOMES[decision.observed]
        fields["observed_reason"] = f"a policy in mode observe says {decision.observed.value}"
    return fields


def abandon(record: RequestRecord, connector: str) -> dict[str, Any] | None:
    """Return the fields of the ``LoadOutcome`` of a request that leaves with a failed load nobody decided about.

    Returns None if its load did not fail, or its outcome is decided.
    """
    if record.failure is None or not _take(record):
        return None
    fields = _fields(record, c.OUTCOME_ABORTED, c.DECIDED_BY_VLLM, connector)
    fields["reason"] = "the request ended before its failed load was handled"
    return fields


def _take(record: RequestRecord) -> bool:
    attempt = max(record.attempt, 1)
    if record.decided >= attempt:
        return False
    record.decided = attempt
    return True


def _fields(record: RequestRecord, outcome: int, decided_by: int, connector: str) -> dict[str, Any]:
    failure = record.failure
    peer = failure.peer if failure is not None else record.peer
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_KV,
        "outcome": outcome,
        "decided_by": decided_by,
        # A connector that tells nothing but the blocks: the load failed, that is all.
        "mode": failure.mode if failure is not None else c.FAILURE_MODE_LOAD,
        "error_type": failure.error_type if failure is not None else c.ERROR_TYPE_OTHER,
        "attempt": max(record.attempt, 1),
        "connector": connector,
    }
    if peer is not None:
        fields["peer"] = peer.fields()
    return fields
