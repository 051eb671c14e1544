"""Decides about one failed load: recompute or fail, by whom, and why.

Pure functions of the failure, vLLM's own configuration and the policy; the only state is the budget and the log of
decisions. ``tests/rules/test_decision_tables.py`` lists every combination. The words that end a decision's
reason, where a recompute cannot be carried out, are here for both sides.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.proto import constants
from penstock.rules.policy import Action, EcLoadFailure, KvLoadFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.rules.policy import Policy, PolicyBody
    from penstock.rules.recompute_budget import RecomputeBudget

EXPORTED: Final = "another connector may have passed tainted blocks on, and these cannot be called back"
"""Why a request fails whose blocks another connector may have passed on."""

PINNED: Final = (
    "a transfer is in flight and its blocks are pinned until that has ended, so the request cannot be rewound"
)
"""Why a request fails that should have been rewound, but whose load was given up after its transfer had begun."""

HELD: Final = "it waits with blocks that cannot be taken from it, so it cannot be rewound"
"""Why a request fails that should have been rewound, but waits for something else with its blocks."""

LOOKING_UP: Final = "the connector has not said what it has, and a look-up cannot be taken back"
"""Why a request fails that should have been computed here, but whose connector puts the answer off."""

WITHOUT_MEDIA: Final = (
    "an input cannot be encoded again: vLLM left its media out when it told the workers of the request"
)
"""Why a request fails that should have been rewound, or was, on vLLM's V1 model runner."""

MEDIA_ELSEWHERE: Final = "the media is not on this engine"
"""Why a request fails that has lost encoder outputs."""


class Outcome(IntEnum):
    """The two outcomes to choose from, with the wire's numbers."""

    RECOMPUTED = constants.OUTCOME_RECOMPUTED
    FAILED = constants.OUTCOME_FAILED


class DecidedBy(IntEnum):
    """Who chose, with the wire's numbers."""

    VLLM = constants.DECIDED_BY_VLLM
    POLICY = constants.DECIDED_BY_POLICY
    QUARANTINE = constants.DECIDED_BY_QUARANTINE
    BUDGET = constants.DECIDED_BY_BUDGET
    DEADLINE = constants.DECIDED_BY_DEADLINE
    REFLEX = constants.DECIDED_BY_REFLEX


class Trigger(Enum):
    """What requires a decision; the value begins its reason."""

    FAILURE = ""
    QUARANTINE = "the peer is quarantined; "
    DEADLINE = "the wait was over its deadline; "
    START_WAIT = "the wait was dearer than computing; "
    SLOW_PEER = "the peer is slow; "


REFLEX_TRIGGERS: Final = frozenset({Trigger.START_WAIT, Trigger.SLOW_PEER})
"""What a reflex gives up, or leaves out, is computed here."""


def trigger_of(reason: str) -> Trigger:
    """Return what required a decision, by its reason."""
    return next(
        (each for each in Trigger if each.value and reason.startswith(each.value)),
        Trigger.FAILURE,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, who chose it, and a sentence why.

    Attributes:
        field: path of the policy's field that chose it (``kvLoadFailure.action``); empty if none did.

    """

    outcome: Outcome
    decided_by: DecidedBy
    reason: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Decision(Verdict):
    """The verdict to act by, and in *observed* the verdict of the policies in mode observe; None if there are none.

    Attributes:
        policy: the policy that set *field*, for a person; empty if none did.

    """

    observed: Verdict | None = None
    policy: str = ""


@dataclass(frozen=True, slots=True)
class KvLoss:
    """A failed KV load of one request.

    Attributes:
        tokens: to compute again.
        exported: another connector may already have passed tainted blocks on, so the request must not be rewound.
        trigger: what requires the decision.
        reflex: why a reflex gives the load up or leaves it out, with its field first; empty where none does.

    """

    tokens: int
    exported: bool = False
    trigger: Trigger = Trigger.FAILURE
    reflex: str = ""


@dataclass(frozen=True, slots=True)
class EcLoss:
    """A failed load of encoder outputs of one request.

    Attributes:
        items: to encode again on this engine, including those that the request has lost before.
        local_media: whether this engine has the media to encode them from.
        exported: as of :class:`KvLoss`.
        trigger: what requires the decision.

    """

    items: int
    local_media: bool = True
    exported: bool = False
    trigger: Trigger = Trigger.FAILURE


@dataclass(frozen=True, slots=True)
class Budgets:
    """The enforced recompute budget, and the one of the policies in mode observe.

    Two buckets: only enforced recomputes consume the first; the second shows what the observed policy would have
    admitted.
    """

    enforced: RecomputeBudget
    observed: RecomputeBudget

    def on_policy_change(self, policy: Policy) -> None:
        """Configure both by a policy that came into force."""
        for budget, body in ((self.enforced, policy), (self.observed, policy.observed)):
            rule = (body and body.kv_load_failure) or KvLoadFailure()
            budget.configure(rule.tokens_per_second, rule.max_recompute_tokens)


_DECIDED_BY: Final = {
    Trigger.FAILURE: DecidedBy.POLICY,
    Trigger.QUARANTINE: DecidedBy.QUARANTINE,
    Trigger.DEADLINE: DecidedBy.DEADLINE,
    Trigger.START_WAIT: DecidedBy.REFLEX,
    Trigger.SLOW_PEER: DecidedBy.REFLEX,
}
_OUTCOMES: Final = {Action.RECOMPUTE: Outcome.RECOMPUTED, Action.FAIL: Outcome.FAILED}


def decide_kv(
    loss: KvLoss,
    *,
    vllm: Outcome,
    policy: Policy,
    observed: PolicyBody | None,
    budgets: Budgets,
) -> Decision:
    """Decide about a failed KV load by ``kvLoadFailure``, and after a deadline by ``deferral.onTimeout``.

    *vllm* is the outcome of vLLM's own ``kv_load_failure_policy``; it holds wherever the policy sets no action, so
    that without a policy nothing changes. What a reflex gives up is recomputed. Only a recompute by ``auto`` or by a reflex
    consumes the budget; one by an explicit ``recompute`` does not.
    """
    if loss.reflex and not loss.exported:
        return _decision(_reflex_verdict(loss, budgets.enforced), None, policy)
    verdict = _kv_verdict(loss, vllm, policy, budgets.enforced)
    shadow = None if observed is None else _kv_verdict(loss, vllm, observed, budgets.observed)
    return _decision(verdict, shadow, policy)


def decide_ec(loss: EcLoss, *, default: Outcome, policy: Policy, observed: PolicyBody | None) -> Decision:
    """Decide about a failed load of encoder outputs by ``ecLoadFailure``, and after a deadline by ``deferral.onTimeout``.

    vLLM has no such setting: *default* is the connector's outcome where the policy sets no action. Without the media,
    and where tainted blocks may have been passed on, the only outcome is to fail.
    """
    verdict = _ec_verdict(loss, default, policy)
    shadow = None if observed is None else _ec_verdict(loss, default, observed)
    return _decision(verdict, shadow, policy)


def _decision(verdict: Verdict, shadow: Verdict | None, policy: Policy) -> Decision:
    name = policy.name_of(verdict.field) if verdict.field else ""
    return Decision(verdict.outcome, verdict.decided_by, verdict.reason, verdict.field, shadow, name)


def _reflex_verdict(loss: KvLoss, budget: RecomputeBudget) -> Verdict:
    budget.acquire(loss.tokens)
    field = f"{loss.reflex.partition(':')[0]}.action"
    return Verdict(Outcome.RECOMPUTED, DecidedBy.REFLEX, f"{loss.trigger.value}{loss.reflex}", field)


def _kv_verdict(loss: KvLoss, vllm: Outcome, policy: PolicyBody, budget: RecomputeBudget) -> Verdict:
    rule = policy.kv_load_failure or KvLoadFailure()
    action, field = _action(rule.action, "kvLoadFailure.action", loss.trigger, policy)
    decider = _DECIDED_BY[loss.trigger]
    why = loss.trigger.value
    if action is None:
        decider = DecidedBy.VLLM if loss.trigger is Trigger.FAILURE else decider
        return Verdict(vllm, decider, f"{why}vLLM's own kv_load_failure_policy: {_name(vllm)}")
    if loss.exported:
        return Verdict(Outcome.FAILED, decider, f"{why}{EXPORTED}", field)
    if action is not Action.AUTO:
        return Verdict(_OUTCOMES[action], decider, f"{why}{field}: {action.value}", field)
    largest = rule.max_recompute_tokens
    if largest is not None and loss.tokens > largest:
        return Verdict(
            Outcome.FAILED,
            decider,
            f"{why}{loss.tokens} tokens lost, at most {largest} are recomputed",
            "kvLoadFailure.maxRecomputeTokens",
        )
    if budget.acquire(loss.tokens):
        bound = "any number is recomputed" if largest is None else f"at most {largest} are recomputed"
        return Verdict(Outcome.RECOMPUTED, decider, f"{why}{loss.tokens} tokens lost, {bound}", field)
    outcome = Outcome.RECOMPUTED if rule.over_budget is Action.RECOMPUTE else Outcome.FAILED
    room = f"the budget of {budget.rate} tokens/s has room for {budget.available()}"
    return Verdict(
        outcome,
        DecidedBy.BUDGET,
        f"{why}{loss.tokens} tokens lost, {room}; overBudget: {_name(outcome)}",
        "kvLoadFailure.recomputeBudget.tokensPerSecond",
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
            f"{why}{MEDIA_ELSEWHERE}, it cannot encode {loss.items} items",
        )
    if loss.exported:
        return Verdict(Outcome.FAILED, decider, f"{why}{EXPORTED}", field)
    if action is None:
        return Verdict(default, decider, f"{why}the connector's own default: {_name(default)}")
    if action is not Action.AUTO:
        return Verdict(_OUTCOMES[action], decider, f"{why}{field}: {action.value}", field)
    largest = rule.max_recompute_items
    if largest is None:
        return Verdict(
            Outcome.RECOMPUTED, decider, f"{why}{loss.items} items lost, any number is recomputed", field
        )
    outcome = Outcome.RECOMPUTED if loss.items <= largest else Outcome.FAILED
    limit = "ecLoadFailure.maxRecomputeItems"
    return Verdict(outcome, decider, f"{why}{loss.items} items lost, at most {largest} are recomputed", limit)


def _action(
    own: Action | None, field: str, trigger: Trigger, policy: PolicyBody
) -> tuple[Action | None, str]:
    """Return the action that holds and the field that gives it."""
    if trigger is Trigger.DEADLINE and policy.deferral is not None and policy.deferral.on_timeout is not None:
        return policy.deferral.on_timeout, "deferral.onTimeout"
    return own, field


def _name(outcome: Outcome) -> str:
    return "recompute" if outcome is Outcome.RECOMPUTED else "fail"


_CAPACITY: Final = 8192


class LoggedDecision(NamedTuple):
    """The decision that holds; *first* only the first time, when its outcome is to be reported."""

    decision: Decision
    first: bool


class DecisionLog:
    """Decisions by request and attempt; the first one holds. One per channel; belongs to one thread.

    vLLM reports one failed load more than once: a step earlier with tensor parallelism, again after the request has
    finished, and at every poll while the release of a handle fails. Beyond the capacity the decision that was asked
    for longest ago is forgotten.

    Attributes:
        forgotten: how many decisions were forgotten.

    """

    __slots__ = ("_capacity", "_decisions", "forgotten")

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._decisions: OrderedDict[tuple[str, int], Decision] = OrderedDict()
        self.forgotten = 0

    def get_or_decide(self, request_id: str, attempt: int, decide: Callable[[], Decision]) -> LoggedDecision:
        """Return the decision on the *attempt*-th load of a request; *decide* is called if there is none yet."""
        key = (request_id, attempt)
        known = self._decisions.get(key)
        if known is not None:
            self._decisions.move_to_end(key)
            return LoggedDecision(known, first=False)
        decision = self._decisions[key] = decide()
        if len(self._decisions) > self._capacity:
            self._decisions.popitem(last=False)
            self.forgotten += 1
        return LoggedDecision(decision, first=True)

    def revise(self, request_id: str, attempt: int, decision: Decision) -> LoggedDecision:
        """Let *decision* hold instead of one whose outcome is not reported yet."""
        self._decisions.pop((request_id, attempt), None)
        return self.get_or_decide(request_id, attempt, lambda: decision)
