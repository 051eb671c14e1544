"""What the policies say about taking one server out of rotation: their merge, with defaults. Pure.

An engine is sent nothing of it: the relay that leads goes by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.agent.parsing import parse_duration
from penstock.agent.policy.manifest.merge import is_of_the_fleet, policies_selecting

if TYPE_CHECKING:
    from collections.abc import Iterable
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

    Each field comes from the policy of the highest rank, as in a merge for engines. A policy in mode observe enforces
    nothing, and what it ranks before is not enforced either.
    """
    found: dict[str, Any] = {}
    policy = ""
    selecting = [each for each in policies_selecting(policies, target) if not each.expired(now)]
    for each in sorted(selecting, key=lambda one: (-one.spec.priority, one.name)):
        for path, value in each.leaves.items():
            if not is_of_the_fleet(path):
                continue
            policy = policy or each.name
            name = path.partition(".")[2]
            if name == "action":
                found.setdefault("enforces", value == "enforce" and each.spec.mode == "enforce")
            else:
                found.setdefault(
                    _FIELDS[name], parse_duration(value).total_seconds() if isinstance(value, str) else value
                )
    return EjectionRules(policy=policy, **found) if policy else None
