"""What the policies say about taking one server out of rotation: their merge, with defaults. Pure.

An engine is sent nothing of it: the relay that leads goes by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.agent.parsing import parse_duration
from penstock.agent.policy.manifest.merge import is_of_the_fleet, policies_selecting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionRules:
    """``spec.ejection`` of one engine.

    Attributes:
        policy: the one of the highest rank that sets a field of it.
        enforces: false: it is only said what would be done.
        min_readers: agents that must agree.
        min_failures: loads that must have failed at each of these.
        after: seconds for which they must.
        duration: seconds of the first order; each one within an hour of the one before lasts twice as long.
        max_pods_percent: of a pool that may be out of rotation.
        per_hour: orders of the whole fleet.

    """

    policy: str
    enforces: bool = False
    min_readers: int = 2
    min_failures: int = 3
    after: float = 30.0
    duration: float = 60.0
    max_pods_percent: int = 34
    per_hour: int = 6


_FIELDS = {
    "minReaders": "min_readers",
    "minFailures": "min_failures",
    "after": "after",
    "duration": "duration",
    "maxPodsPercent": "max_pods_percent",
    "perHour": "per_hour",
}


def ejection_rules(policies: Iterable[Manifest], target: Target, now: datetime) -> EjectionRules | None:
    """Return what *policies* say about *target*; None for nothing.

    Each field comes from the policy of the highest rank, as in a merge for engines. What is enforced is what policies in mode
    enforce say, alone: one in mode observe loosens nothing. Where these enforce nothing, all are merged, and only observed.
    """
    selecting = [each for each in policies_selecting(policies, target) if not each.expired(now)]
    ranked = sorted(selecting, key=lambda one: (-one.spec.priority, one.name))
    enforced = _merged([each for each in ranked if each.spec.mode == "enforce"])
    if enforced is not None and enforced.enforces:
        return enforced
    found = _merged(ranked)
    return None if found is None else replace(found, enforces=False)


def strictest(rules: Sequence[EjectionRules | None]) -> EjectionRules | None:
    """Return the rules of a server by those of its engines: it goes out as a whole, so all of them must have it so."""
    given = [each for each in rules if each is not None]
    if not given or len(given) < len(rules):
        return None
    return EjectionRules(
        policy=given[0].policy,
        enforces=all(each.enforces for each in given),
        min_readers=max(each.min_readers for each in given),
        min_failures=max(each.min_failures for each in given),
        after=max(each.after for each in given),
        duration=min(each.duration for each in given),
        max_pods_percent=min(each.max_pods_percent for each in given),
        per_hour=min(each.per_hour for each in given),
    )


def _merged(ranked: Iterable[Manifest]) -> EjectionRules | None:
    found: dict[str, Any] = {}
    policy = ""
    for each in ranked:
        for path, value in each.leaves.items():
            if not is_of_the_fleet(path):
                continue
            policy = policy or each.name
            name = path.partition(".")[2]
            if name == "action":
                found.setdefault("enforces", value == "enforce")
            else:
                found.setdefault(
                    _FIELDS[name], parse_duration(value).total_seconds() if isinstance(value, str) else value
                )
    return EjectionRules(policy=policy, **found) if policy else None
