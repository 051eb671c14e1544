"""Decides about each failed KV load by the policy in force, and names overdue loads (``deferral``) to the workers, which end them.

One recompute budget for the engine, one decision for each attempt. A deadline frees nothing here: the worker ends the transfer
where it polls it, vLLM's own failure path runs, and the failure is then decided about like any other (``deferral.onTimeout``).
Workers of a connector that takes no orders are not asked; the scheduler gives such a load up itself (``abandoned_loads.py``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.recovery import rewind
from penstock.rules import (
    HELD,
    LOOKING_UP,
    NO_POLICY,
    PINNED,
    REFLEX_TRIGGERS,
    WITHOUT_MEDIA,
    Budgets,
    DeadlineLimits,
    Deadlines,
    DecidedBy,
    DecisionLog,
    KvLoss,
    Outcome,
    RecomputeBudget,
    Trigger,
    decide_kv,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.kv.reflexes import KvReflexes
    from penstock.instrumentation.vllm.messages import StepMetadata
    from penstock.instrumentation.vllm.requests import Affected, RequestRecord
    from penstock.rules import Decision, LoggedDecision, Overdue, Policy, WaitKind


_OPTIONAL: Final = "vLLM computes what a tier does not bring"


class KvDeadlines:
    """The requests of one scheduler that wait for remote KV, and those that are over a deadline.

    All but :meth:`on_policy_change` on the scheduler's thread. The clocks run without a policy too, so that a new one applies to
    requests that already wait.

    Attributes:
        waiting: the requests that wait, by kind of wait; see ``Deadlines.tables``.
        left: overdue requests whose load no worker ends; always the same dict.
        looking_up: requests whose connector puts its answer off in the step that is being put together, or was last.

    """

    def __init__(
        self, orders: StepMetadata, takes_orders: Callable[[str], bool], reflexes: KvReflexes
    ) -> None:
        """Name overdue requests to the workers by *orders*, if *takes_orders* says that those that load them obey.

        *reflexes* have a limit of their own for each request.
        """
        self._orders = orders
        self._takes_orders = takes_orders
        self._reflexes = reflexes
        self.left: dict[str, Overdue] = {}
        self.looking_up: set[str] = set()
        self._limits = DeadlineLimits()
        self._deadlines = Deadlines()
        self.waiting = self._deadlines.tables
        self._overdue: dict[str, Overdue] = {}
        # By a reflex; their deadlines go on.
        self._given_up: dict[str, Overdue] = {}

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the limits of the policy that came into force."""
        self._limits = DeadlineLimits.from_policy(policy.deferral)
        self._reflexes.on_policy_change(policy)
        if self._given_up and not self._reflexes.gives_up:
            self._given_up = {}
            self._orders.cancel = self._named()

    def on_waiting(self, request_id: str) -> None:
        """Start the clock of a request that waits for its transfer to begin."""
        self._deadlines.begin(request_id, time.monotonic_ns())

    def on_looking_up(self, request_id: str) -> None:
        """Start the same clock, the first time, for a request whose connector has not said what there is to load."""
        self.looking_up.add(request_id)
        if request_id not in self._overdue:
            self.on_waiting(request_id)

    def on_began(self, request_id: str) -> None:
        """Start the transfer's clock; what a reflex gave up and has begun meanwhile goes on."""
        if self._given_up.pop(request_id, None) is not None:
            self._orders.cancel = self._named()
        self._deadlines.started(request_id, time.monotonic_ns())

    def on_ended(self, request_id: str) -> None:
        """Forget a request that no longer waits."""
        self._deadlines.end(request_id)
        if self._reflexes.active:
            self._reflexes.on_ended(request_id)
        given_up = self._given_up.pop(request_id, None) is not None
        was_overdue = self._overdue.pop(request_id, None) is not None
        if given_up or (was_overdue and self.left.pop(request_id, None) is None):
            self._orders.cancel = self._named()

    def check(self) -> None:
        """Name the requests that are over a deadline now to the workers; once in each step."""
        self.looking_up.clear()
        now = time.monotonic_ns()
        found = self._deadlines.pop_overdue(self._limits, now)
        if found:
            self._overdue.update({each.request_id: each for each in found})
            self.left.update(
                {each.request_id: each for each in found if not self._takes_orders(each.request_id)}
            )
            self._orders.cancel = self._named()
        if self._reflexes.active:
            starts, _ = self.waiting
            given_up = self._reflexes.overdue(starts, now)
            if given_up:
                self._given_up |= {each.request_id: each for each in given_up}
                self._orders.cancel = self._named()

    def is_given_up(self, request_id: str) -> bool:
        """Return whether a reflex has given a load up, and no worker has said yet what became of it."""
        return request_id in self._given_up

    def overdue(self, request_id: str) -> Overdue | None:
        """Return by how much a request is over its deadline, or None if it is not."""
        return self._overdue.get(request_id)

    def _named(self) -> dict[str, WaitKind]:
        overdue = {name: each.wait for name, each in self._overdue.items() if name not in self.left}
        return {**{name: each.wait for name, each in self._given_up.items()}, **overdue}


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

    @property
    def decides_some(self) -> bool:
        """Whether the policy says what is done about every failed load, or about those that a deadline ended."""
        deferral = self.policy.deferral
        return self.decides_all or (deferral is not None and deferral.on_timeout is not None)

    def decide(
        self, record: RequestRecord, affected: Affected, observe: Callable[[Decision, int], Decision]
    ) -> LoggedDecision:
        """Decide about the present load of a request, or return what was decided about it before.

        *observe* adds to a new decision, about so many tokens, what would have been decided otherwise.
        """
        settled = self._log.get_or_decide(
            record.request_id,
            record.present_attempt,
            lambda: observe(self._decide(affected, record.reflex), affected.lost),
        )
        record.decided = record.present_attempt
        return settled

    def wait_ns(self, affected: Affected) -> int | None:
        """Return in how many nanoseconds the budget has room for what a request lost; None for never."""
        return self._budgets.enforced.wait_ns(affected.lost)

    def has_room(self, tokens: int, beside: int) -> bool:
        """Return whether *tokens* may be recomputed for one request now, *beside* those that are about to be."""
        rule = self.policy.kv_load_failure
        largest = None if rule is None else rule.max_recompute_tokens
        fits = largest is None or tokens <= largest
        return fits and self._budgets.enforced.wait_ns(tokens + beside) == 0

    def give_up(self, record: RequestRecord, decision: Decision) -> LoggedDecision:
        """Fail a load that was to be recomputed, because a deadline came before its last transfer had ended."""
        failed = replace(rewind.fail_instead(decision, PINNED), decided_by=DecidedBy.DEADLINE)
        return self._log.revise(record.request_id, record.present_attempt, failed)

    def _decide(self, affected: Affected, reflex: str) -> Decision:
        trigger = affected.trigger
        if trigger not in REFLEX_TRIGGERS:
            reflex = ""
        elif not reflex:
            trigger = Trigger.FAILURE
        decision = decide_kv(
            KvLoss(affected.lost, affected.exported, trigger, reflex),
            vllm=Outcome.RECOMPUTED if affected.optional else self._own,
            policy=self.policy,
            observed=self.policy.observed,
            budgets=self._budgets,
        )
        if affected.optional and not decision.field:
            decision = replace(decision, reason=f"{affected.trigger.value}{_OPTIONAL}")
        if affected.looking_up:
            return rewind.fail_instead(decision, LOOKING_UP)
        if affected.pinned or affected.held:
            return rewind.fail_instead(decision, PINNED if affected.pinned else HELD)
        if affected.without_media and decision.decided_by is not DecidedBy.VLLM:
            return rewind.fail_instead(decision, WITHOUT_MEDIA)
        return decision
