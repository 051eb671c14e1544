"""What is done about one failed load: recompute or fail, decided by whom, and why.

Pure functions of the failure, vLLM's own configuration and the policy; the only state is the budget and the ledger.
The table in ``tests/instrumentation/decisions`` lists every combination.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants
from penstock.instrumentation.resilience.policy import Action, EcLoadFailure, KvLoadFailure

if TYPE_CHECKING:
    from penstock.instrumentation.resilience.policy import Policy, PolicyBody
    from penstock.instrumentation.resilience.recompute_budget import RecomputeBudget


class Outcome(IntEnum):
    """The two outcomes that are chosen, as on the wire."""

    RECOMPUTED = constants.OUTCOME_RECOMPUTED
    FAILED = constants.OUTCOME_FAILED


class DecidedBy(IntEnum):
    """Who chose, as on the wire."""

    VLLM = constants.DECIDED_BY_VLLM
    POLICY = constants.DECIDED_BY_POLICY
    QUARANTINE = constants.DECIDED_BY_QUARANTINE
    BUDGET = constants.DECIDED_BY_BUDGET
    DEADLINE = constants.DECIDED_BY_DEADLINE


class Trigger(Enum):
    """Why there is something to decide; the value opens the reason."""

    FAILURE = ""
    QUARANTINE = "the peer is quarantined; "
    DEADLINE = "the wait was over its deadline; "


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, who chose it, and why in words."""

    outcome: Outcome
    decided_by: DecidedBy
    reason: str


@dataclass(frozen=True, slots=True)
class Decision(Verdict):
    """What is done, and in *observed* what the policies in mode observe would have done; None if there are none."""

    observed: Verdict | None = None


@dataclass(frozen=True, slots=True)
class KvLoss:
    """What a failed KV load means for one request.

    *tokens* would be computed again. *exported*: another connector may already have passed tainted blocks on, so the
    request must not be rewound.
    """

    tokens: int
    exported: bool = False
    trigger: Trigger = Trigger.FAILURE


@dataclass(frozen=True, slots=True)
class EcLoss:
    """What a failed load of encoder outputs means for one request.

    *items* would be encoded again, here, with those that it has lost before. *local_media*: this engine has the media to encode them from.
    """

    items: int
    local_media: bool = True
    exported: bool = False
    trigger: Trigger = Trigger.FAILURE


@dataclass(frozen=True, slots=True)
class Budgets:
    """The recompute budget that is enforced, and the one that policies in mode observe are judged by.

    Two buckets: only enforced recomputes take from the first, and the second shows what the observed policy
    would really have let through.
    """

    enforced: RecomputeBudget
    observed: RecomputeBudget

    def follow(self, policy: Policy) -> None:
        """Configure both by a policy that came into force."""
        for budget, body in ((self.enforced, policy), (self.observed, policy.observed)):
            rule = (body and body.kv_load_failure) or KvLoadFailure()
            budget.configure(rule.tokens_per_second, rule.max_recompute_tokens)


_EXPORTED: Final = "another connector may have passed tainted blocks on, and these cannot be called back"
_DECIDED_BY: Final = {
    Trigger.FAILURE: DecidedBy.POLICY,
    Trigger.QUARANTINE: DecidedBy.QUARANTINE,
    Trigger.DEADLINE: DecidedBy.DEADLINE,
}
_OUTCOMES: Final = {Action.RECOMPUTE: Outcome.RECOMPUTED, Action.FAIL: Outcome.FAILED}


def decide_kv(
    loss: KvLoss,
    *,
    vllm: Outcome,
    policy: PolicyBody,
    observed: PolicyBody | None,
    budgets: Budgets,
) -> Decision:
    """Decide about a failed KV load by ``kvLoadFailure``, and after a deadline by ``deferral.onTimeout``.

    *vllm* is what vLLM's own ``kv_load_failure_policy`` does; it holds wherever the policy names no action, to the
    letter, so that without a policy nothing changes. Only ``auto`` asks the budget, and only a recompute by
    ``auto`` takes from it: what an operator has ordered outright is not counted against it.
    """
    verdict = _kv_verdict(loss, vllm, policy, budgets.enforced)
    shadow = None if observed is None else _kv_verdict(loss, vllm, observed, budgets.observed)
    return Decision(verdict.outcome, verdict.decided_by, verdict.reason, shadow)


def decide_ec(loss: EcLoss, *, default: Outcome, policy: PolicyBody, observed: PolicyBody | None) -> Decision:
    """Decide about a failed load of encoder outputs by ``ecLoadFailure``, and after a deadline by ``deferral.onTimeout``.

    vLLM has no such choice: *default* is what the connector does where the policy names no action. Without the media,
    and where tainted blocks may have been passed on, a request can only fail, whoever decides.
    """
    verdict = _ec_verdict(loss, default, policy)
    shadow = None if observed is None else _ec_verdict(loss, default, observed)
    return Decision(verdict.outcome, verdict.decided_by, verdict.reason, shadow)


def _kv_verdict(loss: KvLoss, vllm: Outcome, policy: PolicyBody, budget: RecomputeBudget) -> Verdict:
    rule = policy.kv_load_failure or KvLoadFailure()
    action, field = _action(rule.action, "kvLoadFailure.action", loss.trigger, policy)
    decider = _DECIDED_BY[loss.trigger]
    why = loss.trigger.value
    if action is None:
        decider = DecidedBy.VLLM if loss.trigger is Trigger.FAILURE else decider
        return Verdict(vllm, decider, f"{why}vLLM's own kv_load_failure_policy: {_word(vllm)}")
    if loss.exported:
        return Verdict(Outcome.FAILED, decider, f"{why}{_EXPORTED}")
    if action is not Action.AUTO:
        return Verdict(_OUTCOMES[action], decider, f"{why}{field}: {action.value}")
    largest = rule.max_recompute_tokens
    if largest is not None and loss.tokens > largest:
        return Verdict(
            Outcome.FAILED, decider, f"{why}{loss.tokens} tokens lost, at most {largest} are recomputed"
        )
    if budget.take(loss.tokens):
        bound = "any number is recomputed" if largest is None else f"at most {largest} are recomputed"
        return Verdict(Outcome.RECOMPUTED, decider, f"{why}{loss.tokens} tokens lost, {bound}")
    outcome = Outcome.RECOMPUTED if rule.over_budget is Action.RECOMPUTE else Outcome.FAILED
    room = f"the budget of {budget.rate} tokens/s has room for {budget.available()}"
    return Verdict(
        outcome, DecidedBy.BUDGET, f"{why}{loss.tokens} tokens lost, {room}; overBudget: {_word(outcome)}"
    )


def _ec_verdict(loss: EcLoss, default: Outcome, policy: PolicyBody) -> Verdict:
    rule = policy.ec_load_failure or EcLoadFailure()
    action, field = _action(rule.action, "ecLoadFailure.action", loss.trigger, policy)
    decider = _DECIDED_BY[loss.trigger]
    why = loss.trigger.value
    if action is None and loss.trigger is Trigger.FAILURE:
        decider = DecidedBy.VLLM
    if not loss.local_media:
        return Verdict(
            Outcome.FAILED,
            decider,
            f"{why}the media is not on this engine, it cannot encode {loss.items} items",
        )
    if loss.exported:
        return Verdict(Outcome.FAILED, decider, f"{why}{_EXPORTED}")
    if action is None:
        return Verdict(default, decider, f"{why}the connector's own default: {_word(default)}")
    if action is not Action.AUTO:
        return Verdict(_OUTCOMES[action], decider, f"{why}{field}: {action.value}")
    largest = rule.max_recompute_items
    if largest is None:
        return Verdict(Outcome.RECOMPUTED, decider, f"{why}{loss.items} items lost, any number is recomputed")
    outcome = Outcome.RECOMPUTED if loss.items <= largest else Outcome.FAILED
    return Verdict(outcome, decider, f"{why}{loss.items} items lost, at most {largest} are recomputed")


def _action(
    own: Action | None, field: str, trigger: Trigger, policy: PolicyBody
) -> tuple[Action | None, str]:
    """Return the action that holds and the field that gives it."""
    if trigger is Trigger.DEADLINE and policy.deferral is not None and policy.deferral.on_timeout is not None:
        return policy.deferral.on_timeout, "deferral.onTimeout"
    return own, field


def _word(outcome: Outcome) -> str:
    return "recompute" if outcome is Outcome.RECOMPUTED else "fail"
