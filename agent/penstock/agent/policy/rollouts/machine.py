"""What becomes of a roll-out: from its state, the time and the comparisons to the next state. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.policy.rollouts.state import ALL, RolloutPlan, RolloutState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.policy.rollouts.comparison import Comparison

ACTIONS = ("start", "pause", "resume", "promote", "abort")


def start_rollout(
    plan: RolloutPlan, *, author: str, content: str, percent: int, now: float, changes: bool = False
) -> RolloutState:
    """Return the first state.

    Args:
        plan: the order.
        author: who gave it.
        content: digest of what is rolled out.
        percent: of the engines that have the policy now.
        now: seconds since the epoch.
        changes: it is of a change of a policy that all engines have.

    Raises:
        ContractError: the plan is out of bounds.
        ImpossibleError: the policy has more engines than its first step.

    """
    plan.check()
    first = plan.steps[0]
    if percent > first:
        raise ImpossibleError(
            f"the policy is in {percent} % of the engines, and the first step of {first} % would take it away from "
            f"some; give steps from {percent} on, or set it to 0 % first: agentctl set-policy NAME --rollout-percent 0"
        )
    state = RolloutState(plan, author, now, content, began=now, changes=changes)
    return _at_step(state, 0, now, f"started by {author}")


def observe(
    state: RolloutState, now: float, comparisons: Sequence[Comparison], *, held: float, obstacle: str = ""
) -> RolloutState:
    """Return the next state by the *comparisons* of the present step, one a condition; the same state for no change.

    Args:
        state: the present one.
        now: seconds since the epoch.
        comparisons: of the present step.
        held: seconds that the step was led.
        obstacle: why no step may follow, whatever the comparisons say; empty for nothing.

    """
    if state.phase not in {"progressing", "undecided"}:
        return state
    worse = [comparison.evidence for comparison in comparisons if comparison.verdict == "worse"]
    if worse:
        message = f"aborted at {state.percent} %: {'; '.join(worse)}"
        return replace(state, phase="aborted", percent=0, message=message)
    if held < state.plan.hold:
        return state
    open_ = [comparison.evidence for comparison in comparisons if comparison.verdict == "undecided"]
    if obstacle or (open_ and not state.plan.proceed_undecided):
        if state.phase == "undecided":
            return state
        message = (
            f"undecided at {state.percent} %: {'; '.join([obstacle] if obstacle else open_)}; it waits for evidence, or for "
            "'agentctl rollout promote' or 'agentctl rollout abort'"
        )
        return replace(state, phase="undecided", message=message)
    why = f"{state.percent} % held for {_minutes(held)}"
    why += ", undecided" if open_ else ", no worse" if comparisons else ""
    return _at_step(state, state.step + 1, now, why)


def command(state: RolloutState, action: str, *, author: str, reason: str, now: float) -> RolloutState:
    """Return the state after a person's order: ``pause``, ``resume``, ``promote`` or ``abort``.

    Raises:
        ImpossibleError: the present phase does not allow it.
        ContractError: there is no such action.

    """
    if action not in ACTIONS[1:]:
        raise ContractError(f"the action is {action!r:.40}; use one of {', '.join(ACTIONS)}")
    if not state.live:
        raise ImpossibleError(f"the roll-out is {state.phase}; 'agentctl rollout start' begins another")
    why = f" by {author}" + (f": {reason}" if reason else "")
    if action == "promote":
        return replace(
            state,
            phase="promoted",
            step=len(state.plan.steps) - 1,
            began=now,
            percent=ALL,
            message=f"promoted{why}",
        )
    if action == "abort":
        return replace(state, phase="aborted", percent=0, message=f"aborted at {state.percent} %{why}")
    if (action == "resume") != (state.phase == "paused"):
        raise ImpossibleError(f"the roll-out is {state.phase}; it cannot {action}")
    if action == "pause":
        return replace(state, phase="paused", message=f"paused at {state.percent} %{why}")
    message = f"resumed at {state.percent} %{why}"
    return replace(state, phase="progressing", began=now, tests=state.tests + 1, message=message)


def interrupt(state: RolloutState, why: str) -> RolloutState:
    """Return the state after a change that is not of the roll-out, such as an edit of the policy: paused."""
    return replace(state, phase="paused", message=f"paused at {state.percent} %: {why}")


def adopt(state: RolloutState, content: str, percent: int) -> RolloutState:
    """Return the state with the policy as it is now: at the last step that *percent* reaches, or at the first one.

    Args:
        state: of a roll-out that goes on.
        content: digest of what the policy is now.
        percent: of the engines that have it now.

    """
    if percent != state.percent:
        reached = [index for index, step in enumerate(state.plan.steps[:-1]) if step <= percent]
        step = reached[-1] if reached else 0
        state = replace(state, step=step, percent=state.plan.steps[step])
    return replace(state, content=content)


def begin_again(state: RolloutState, now: float) -> RolloutState:
    """Return the state under a leader that does not know what the engines had counted when the step began.

    The hold begins again, too: without a leader the conditions were not checked.
    """
    message = f"still at {state.percent} %: another leads it now, the step begins again"
    return replace(state, phase="progressing", began=now, tests=state.tests + 1, message=message)


def _at_step(state: RolloutState, step: int, now: float, why: str) -> RolloutState:
    percent = state.plan.steps[min(step, len(state.plan.steps) - 1)]
    if percent >= ALL:
        last = len(state.plan.steps) - 1
        return replace(
            state,
            phase="promoted",
            step=last,
            began=now,
            percent=ALL,
            message=f"promoted to all engines: {why}",
        )
    return replace(
        state,
        phase="progressing",
        step=step,
        began=now,
        tests=state.tests + (1 if step else 0),
        percent=percent,
        message=f"at {percent} %: {why}",
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"  # noqa: PLR2004  (a minute)
