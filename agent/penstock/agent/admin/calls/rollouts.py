"""The calls about roll-outs: a policy to more and more engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.agent.admin.lookups import author_and_reason, timedelta_of, timestamp_message
from penstock.agent.errors import ContractError, ImpossibleError, NotFoundError
from penstock.agent.policy.manifest import parse_manifest
from penstock.agent.policy.rollouts import (
    DEFAULT_CONDITIONS,
    DEFAULT_HOLD,
    DEFAULT_STEPS,
    RolloutPlan,
    parse_conditions,
)
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.policy.rollouts import Comparison, RolloutLeader, RolloutState
    from penstock.agent.policy.store import StoredPolicy


class Leads(Protocol):
    """What may lead roll-outs: an agent, or a relay."""

    @property
    def rollouts(self) -> RolloutLeader | None:
        """What leads them; None for nothing."""


_START = "start"
# More than any roll-out has.
_MAX_CONDITIONS = 16


async def set_policy_rollout(agent: Leads, request: admin.SetPolicyRolloutRequest) -> admin.PolicyRollout:
    """Start, pause, resume, promote or abort the roll-out of a policy."""
    leader = _leader(agent)
    how = author_and_reason(request.author, request.reason)
    if request.action == _START:
        change = parse_manifest(request.manifest_json) if request.manifest_json else None
        await leader.start(request.name, _plan(request), change=change, **how)
    else:
        if (
            request.steps
            or request.abort_if
            or request.HasField("hold")
            or request.proceed_undecided
            or request.manifest_json
        ):
            raise ContractError(
                f"steps, hold, conditions and a change belong to a start, but the action is {request.action!r:.40}"
            )
        await leader.order(request.name, request.action, **how)
    (found,) = _rollouts(leader, request.name)
    return found


async def list_policy_rollouts(
    agent: Leads, request: admin.ListPolicyRolloutsRequest
) -> admin.ListPolicyRolloutsResponse:
    """Return all roll-outs, or that of one policy; those that are over stay until the policy is replaced."""
    found = _rollouts(_leader(agent), request.name)
    if request.name and not found:
        raise NotFoundError(
            f"policy {request.name!r} has no roll-out; 'agentctl rollout status' lists all roll-outs"
        )
    return admin.ListPolicyRolloutsResponse(rollouts=found)


def _leader(agent: Leads) -> RolloutLeader:
    if agent.rollouts is None:
        raise ImpossibleError("this agent leads no roll-outs")
    return agent.rollouts


def _plan(request: admin.SetPolicyRolloutRequest) -> RolloutPlan:
    if len(request.abort_if) > _MAX_CONDITIONS:
        raise ContractError(
            f"there are {len(request.abort_if)} abort conditions; give at most one for each measure"
        )
    hold = timedelta_of(request.hold).total_seconds() if request.HasField("hold") else DEFAULT_HOLD
    conditions = parse_conditions(request.abort_if or DEFAULT_CONDITIONS)
    return RolloutPlan(
        tuple(request.steps) or DEFAULT_STEPS, hold, conditions, proceed_undecided=request.proceed_undecided
    )


def _rollouts(leader: RolloutLeader, name: str) -> list[admin.PolicyRollout]:
    return [
        _message(leader, policy, state, comparisons)
        for policy, state, comparisons in leader.rollouts()
        if name in {"", policy.manifest.name}
    ]


def _message(
    leader: RolloutLeader, policy: StoredPolicy, state: RolloutState, comparisons: Iterable[Comparison]
) -> admin.PolicyRollout:
    selected, matched = leader.shares(policy.manifest)
    plan = state.plan
    message = admin.PolicyRollout(
        name=policy.manifest.name,
        generation=policy.generation,
        state=state.phase,
        percent=state.percent,
        steps=plan.steps,
        abort_if=map(str, plan.abort_if),
        proceed_undecided=plan.proceed_undecided,
        author=state.author,
        message="; ".join(filter(None, (state.message, leader.obstacle(policy)))),
        comparisons=[
            admin.RolloutComparison(
                condition=str(comparison.condition), verdict=comparison.verdict, evidence=comparison.evidence
            )
            for comparison in comparisons
        ],
        engines_selected=selected,
        engines_matched=matched,
        changes=state.changes,
        started=timestamp_message(int(state.started * NANOS)),
    )
    message.hold.FromNanoseconds(int(plan.hold * NANOS))
    if state.live:
        message.step_began.FromNanoseconds(int(state.began * NANOS))
        message.step_ends.FromNanoseconds(int(state.ends * NANOS))
    return message
