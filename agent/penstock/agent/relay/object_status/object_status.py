"""The status of a TransferPolicy object, of what the agents of a fleet say about the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.proto.v1 import admin_pb2 as admin

_TRUE, _FALSE, _UNKNOWN = "True", "False", "Unknown"
_NAMED: Final = 3
_MAX_MESSAGE: Final = 1_000
_EXPIRED: Final = "spec.expiresAt is past: no engine has it any more; delete it, or set another time"
_OF_EXPIRED: Final = (("Accepted", _TRUE), ("Programmed", _FALSE), ("Degraded", _FALSE))
_NO_AGENTS: Final = "the relay has no agents; see its --agents"


class AgentWord(NamedTuple):
    """What one agent says about a policy.

    Attributes:
        agent: its name.
        current: whether it has the policy with the object's present content.
        matched: engines that it selects there.
        in_force: those in which it is in force.
        refusal: why the agent refuses the policy; empty if it does not.

    """

    agent: str
    current: bool
    matched: int = 0
    in_force: int = 0
    refusal: str = ""


class _Condition(NamedTuple):
    kind: str
    status: str
    reason: str
    message: str


def object_status(
    generation: int,
    words: Sequence[AgentWord],
    missing: Sequence[str],
    before: Mapping[str, Any],
    now: str,
    *,
    expired: bool = False,
) -> dict[str, Any]:
    """Return the status of an object.

    Args:
        generation: ``metadata.generation`` of the object that *words* are about.
        words: of the agents that answer.
        missing: names of those that do not.
        before: the present status.
        now: RFC 3339; the time of a condition that changes.
        expired: the policy's ``expiresAt`` is past, so that no agent has it any more.

    """
    current = [word for word in words if word.current]
    refusing = [word for word in words if word.refusal]
    matched = sum(word.matched for word in current)
    in_force = sum(word.in_force for word in current)
    if expired:
        conditions = [_Condition(kind, status, "Expired", _EXPIRED) for kind, status in _OF_EXPIRED]
    else:
        conditions = [
            _accepted(words, refusing),
            _programmed(words, missing, matched, in_force),
            _degraded(words, missing),
        ]
    known = {each.get("type"): each for each in before.get("conditions") or () if isinstance(each, dict)}
    return {
        "observedGeneration": generation,
        "matched": matched,
        "inForce": in_force,
        "refused": len(refusing),
        "conditions": [_shown(each, generation, known.get(each.kind), now) for each in conditions],
    }


def _accepted(words: Sequence[AgentWord], refusing: Sequence[AgentWord]) -> _Condition:
    if refusing:
        return _Condition(
            "Accepted",
            _FALSE,
            "Refused",
            f"{_counted(len(refusing), 'agent refuses', 'agents refuse')} it; {refusing[0].agent}: {refusing[0].refusal}",
        )
    if not any(word.current for word in words):
        return _Condition("Accepted", _UNKNOWN, "NotRead", "no agent has read it yet")
    return _Condition("Accepted", _TRUE, "Accepted", "no agent refuses it")


def _programmed(
    words: Sequence[AgentWord], missing: Sequence[str], matched: int, in_force: int
) -> _Condition:
    late = [word.agent for word in words if not word.current or word.in_force < word.matched]
    if late:
        return _Condition(
            "Programmed",
            _FALSE,
            "Pending",
            f"it is in force in {in_force} of {_counted(matched, 'engine', 'engines')}; not yet at {_named(late)}",
        )
    if missing:
        return _Condition(
            "Programmed",
            _UNKNOWN,
            "AgentsAway",
            f"it is in force in {_counted(in_force, 'engine', 'engines')}; {_named(missing)} do not answer",
        )
    if not words:
        return _Condition("Programmed", _UNKNOWN, "NoAgents", _NO_AGENTS)
    if not matched:
        return _Condition(
            "Programmed",
            _FALSE,
            "NoEngines",
            "no connected engine matches its selector and is in its roll-out",
        )
    return _Condition(
        "Programmed",
        _TRUE,
        "Programmed",
        f"it is in force in all of {_counted(matched, 'engine', 'engines')}",
    )


def _degraded(words: Sequence[AgentWord], missing: Sequence[str]) -> _Condition:
    other = [word.agent for word in words if not word.current]
    if missing:
        return _Condition("Degraded", _TRUE, "AgentsAway", f"no answer from {_named(missing)}")
    if other:
        return _Condition("Degraded", _TRUE, "OtherContent", f"another content or none at {_named(other)}")
    if not words:
        return _Condition("Degraded", _UNKNOWN, "NoAgents", _NO_AGENTS)
    return _Condition("Degraded", _FALSE, "Healthy", "all agents answer and have it")


def _shown(
    condition: _Condition, generation: int, before: Mapping[str, Any] | None, now: str
) -> dict[str, Any]:
    same = before is not None and before.get("status") == condition.status
    return {
        "type": condition.kind,
        "status": condition.status,
        "observedGeneration": generation,
        "lastTransitionTime": (before or {}).get("lastTransitionTime", now) if same else now,
        "reason": condition.reason,
        "message": condition.message[:_MAX_MESSAGE],
    }


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


class FleetWords:
    """What the agents said at one time.

    Attributes:
        missing: the agents that did not answer.

    """

    def __init__(
        self,
        policies: Mapping[str, Iterable[admin.Policy]],
        statuses: Mapping[str, admin.AgentStatus],
        missing: Iterable[str],
    ) -> None:
        """Keep the answers by agent.

        Args:
            policies: of each agent that answers.
            statuses: with its policy sources.
            missing: names of those that do not answer.

        """
        # Who says which policies it has, and not which it refuses, has not answered.
        self.missing = tuple(sorted({*missing, *(policies.keys() - statuses.keys())}))
        self._policies = {
            agent: {each.name: each for each in found}
            for agent, found in policies.items()
            if agent in statuses
        }
        self._refusals = {
            agent: {
                refusal.name: refusal.sentence
                for source in status.policy_sources
                if source.kind == "kubernetes"
                for refusal in source.refusals
            }
            for agent, status in statuses.items()
        }

    def about(self, name: str, content: str) -> list[AgentWord]:
        """Return what each agent says about policy *name*, whose canonical manifest is *content*."""
        found = []
        for agent, policies in self._policies.items():
            policy, refusal = policies.get(name), self._refusals.get(agent, {}).get(name, "")
            if policy is None or policy.manifest_json != content:
                found.append(AgentWord(agent, current=False, refusal=refusal))
            else:
                found.append(
                    AgentWord(
                        agent,
                        current=True,
                        matched=policy.engines_selected,
                        in_force=policy.engines_in_force,
                        refusal=refusal,
                    )
                )
        return found
