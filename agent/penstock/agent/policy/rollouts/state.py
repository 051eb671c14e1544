"""The plan and the state of a roll-out, as the policy's annotation keeps them: who leads next goes on from there. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from penstock.agent.errors import ContractError, ImpossibleError
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.policy.rollouts.comparison import AbortCondition, parse_conditions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.policy.manifest import Manifest

ANNOTATION = "penstock.dev/rollout"
_REASON = "penstock.dev/reason"
ALL = 100
DEFAULT_STEPS = (5, 25, ALL)
DEFAULT_HOLD = 600.0
DEFAULT_CONDITIONS = ("failed>2x", "deferred>1.5x", "recomputed>2x")
MAX_STEPS = 16
MAX_HOLD = 7 * 86_400.0
# Seconds since 1970: the year 2242, below the last moment of a timestamp in nanoseconds.
_LATEST = float(1 << 33)
# Together, each character escaped, below the 4,096 characters of an annotation.
_MAX_AUTHOR, _MAX_MESSAGE = 160, 400

Phase = Literal["progressing", "undecided", "paused", "promoted", "aborted"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What was ordered.

    Attributes:
        steps: percents, ascending; the last one is 100.
        hold: the least seconds of each step.
        abort_if: the roll-out aborts once one of them holds.
        proceed_undecided: go on after the hold where the comparison is undecided.

    """

    steps: tuple[int, ...] = DEFAULT_STEPS
    hold: float = DEFAULT_HOLD
    abort_if: tuple[AbortCondition, ...] = parse_conditions(DEFAULT_CONDITIONS)
    proceed_undecided: bool = False

    def check(self) -> None:
        """Check the bounds.

        Raises:
            ContractError: steps or hold are out of bounds.

        """
        steps = ",".join(map(str, self.steps))
        ascending = all(one < other for one, other in zip(self.steps, self.steps[1:], strict=False))
        if not self.steps or len(self.steps) > MAX_STEPS or not ascending or not self.steps[0] > 0:
            raise ContractError(
                f"the steps are {steps or 'empty'}; give at most {MAX_STEPS} ascending percents such as 5,25,100"
            )
        if self.steps[-1] != ALL:
            raise ContractError(f"the steps are {steps}; the last one must be 100, as in {steps},100")
        if not 0 < self.hold <= MAX_HOLD:
            raise ContractError(f"the hold is {self.hold:g} s; give a duration up to 7 days such as 10m")


@dataclass(frozen=True, slots=True)
class RolloutState:
    """How far a roll-out has come.

    Attributes:
        phase: ``undecided`` is past its hold without enough evidence.
        step: index of the present step.
        began: of the present step, seconds since the epoch.
        started: seconds since the epoch.
        tests: number of the present sequential test, from 1; a new step or a new leader begins one.
        percent: of the engines that have the policy.
        content: digest of what is rolled out.
        generation: of the policy with this state; at any other one, not the leader has written the state.
        message: why it is in its phase.
        changes: it is of a candidate, and the other engines keep the policy as it was.

    """

    plan: RolloutPlan
    author: str
    started: float
    content: str
    phase: Phase = "progressing"
    step: int = 0
    began: float = 0.0
    tests: int = 1
    percent: int = 0
    message: str = ""
    generation: int = 0
    changes: bool = False

    @property
    def live(self) -> bool:
        """True until it is promoted or aborted."""
        return self.phase not in {"promoted", "aborted"}

    @property
    def ends(self) -> float:
        """When the present step may end, seconds since the epoch."""
        return self.began + self.plan.hold


class Rollouts(NamedTuple):
    """What became of the roll-outs of a store.

    Attributes:
        states: by policy.
        aborts: those that were aborted by their comparison since the agent started.

    """

    states: Mapping[str, RolloutState] = MappingProxyType({})
    aborts: int = 0


def content_of(manifest: Manifest) -> str:
    """Return the digest of what a roll-out of *manifest* carries: all of its spec but the percentage."""
    spec = manifest.document()["spec"]
    share = {name: value for name, value in spec.pop("rollout", {}).items() if name != "percent"}
    return hashlib.sha256(json.dumps(spec | share, sort_keys=True).encode()).hexdigest()[:16]


def with_candidate(manifest: Manifest, change: Manifest) -> Manifest:
    """Return *manifest* with *change* as its candidate, in no engine.

    Raises:
        ImpossibleError: the policy is not in all engines, or *change* changes what a candidate has not, or nothing.

    """
    name = manifest.name
    if manifest.percent != ALL:
        raise ImpossibleError(
            f"policy {name!r} is in {manifest.percent} % of its engines; a change is rolled out of a policy that is in "
            f"all of them, or: agentctl apply, and then 'agentctl rollout start {name}' without a file"
        )
    spec, other = manifest.document()["spec"], change.document()["spec"]
    spec.pop("rollout", None)
    fixed = [each for each in ("selector", "priority", "expiresAt") if spec.get(each) != other.get(each)]
    if change.name != name or "rollout" in other or fixed:
        what = "metadata.name" if change.name != name else f"spec.{fixed[0]}" if fixed else "spec.rollout"
        raise ImpossibleError(
            f"{what} of the change differs from that of policy {name!r}; a change that is rolled out keeps name, "
            "selector, priority and expiry, and has no rollout: 'agentctl get policy -o yaml' prints the present ones"
        )
    if spec == other:
        raise ImpossibleError(f"the file is what policy {name!r} is already; change a field of it")
    document = manifest.document()
    candidate = {
        key: value for key, value in other.items() if key not in {"selector", "priority", "expiresAt"}
    }
    document["spec"] = spec | {"rollout": {"percent": 0, "candidate": candidate}}
    return check_manifest(document)


def state_of(manifest: Manifest) -> RolloutState | None:
    """Return the state that a policy's annotation has; None without one, or if it cannot be read."""
    text = manifest.metadata.annotations.get(ANNOTATION, "")
    try:
        return _read(json.loads(text)) if text else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, ContractError):
        return None


def with_state(manifest: Manifest, state: RolloutState) -> Manifest:
    """Return *manifest* at the state's percentage, with the state, and its message as the reason of the change."""
    document = manifest.document()
    annotations = dict(manifest.metadata.annotations)
    annotations[ANNOTATION] = json.dumps(_written(state), separators=(",", ":"), ensure_ascii=False)
    annotations[_REASON] = state.message
    document["metadata"]["annotations"] = annotations
    document["spec"] = _spec_at(manifest, state)
    return check_manifest(document)


def _spec_at(manifest: Manifest, state: RolloutState) -> dict[str, Any]:
    """Return the spec at the state's percentage; of a change that is over, the one that stays."""
    spec: dict[str, Any] = manifest.document()["spec"]
    if not state.changes:
        return spec | {"rollout": {"percent": state.percent}}
    if manifest.candidate is None:
        # Another writer has taken it out; what that one left stays.
        return spec
    if state.live:
        return spec | {"rollout": spec["rollout"] | {"percent": state.percent}}
    kept = manifest.versions[-1 if state.phase == "promoted" else 0]
    left: dict[str, Any] = kept.document()["spec"]
    return left


def _written(state: RolloutState) -> dict[str, Any]:
    plan = state.plan
    return {
        "phase": state.phase,
        "step": state.step,
        "began": state.began,
        "started": state.started,
        "tests": state.tests,
        "percent": state.percent,
        "content": state.content,
        "changes": state.changes,
        "generation": state.generation,
        "author": state.author[:_MAX_AUTHOR],
        "message": state.message[:_MAX_MESSAGE],
        "steps": plan.steps,
        "hold": plan.hold,
        "abortIf": [str(condition) for condition in plan.abort_if],
        "proceedUndecided": plan.proceed_undecided,
    }


def _read(document: dict[str, Any]) -> RolloutState:
    plan = RolloutPlan(
        tuple(map(int, document["steps"])),
        float(document["hold"]),
        parse_conditions(map(str, document["abortIf"])),
        bool(document["proceedUndecided"]),
    )
    plan.check()
    phase, step = document["phase"], int(document["step"])
    if phase not in PHASES or not 0 <= step < len(plan.steps):
        raise ValueError(phase)
    if not all(0 <= float(document[moment]) < _LATEST for moment in ("started", "began")):
        raise ValueError("a time")
    return RolloutState(
        plan,
        str(document["author"]),
        float(document["started"]),
        str(document["content"]),
        phase,
        step,
        float(document["began"]),
        max(int(document["tests"]), 1),
        int(document["percent"]),
        str(document["message"]),
        int(document.get("generation", 0)),
        bool(document.get("changes", False)),
    )
