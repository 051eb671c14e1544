"""Merges the policies that select one engine, now and as they expire: what the engine is sent. Pure.

Each leaf field comes from the policy of the highest priority that sets it; ties
go to the name that sorts first, so that all pods agree.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.agent.policy.manifest.sections import Leaf, Leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest.manifest import Manifest

    EndOf = Callable[[Manifest], datetime | None]


@dataclass(frozen=True, slots=True)
class FieldSource:
    """A field's value and the policy that sets it."""

    value: Leaf
    policy: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged policy of one engine at one time.

    Attributes:
        body: by path below ``spec``; the merge of the policies in mode enforce.
        observed: the merge of all policies; None if none is in mode observe.
        hash: SHA-256 of the canonical form of both; empty if nothing is set.

    """

    body: Mapping[str, FieldSource] = field(default_factory=dict)
    observed: Mapping[str, FieldSource] | None = None
    hash: str = ""

    def leaves(self) -> Leaves:
        """Return the enforced values, without their sources."""
        return _values(self.body)

    def observed_leaves(self) -> Leaves | None:
        """Return the values if policies in mode observe were enforced; None if there are none."""
        return None if self.observed is None else _values(self.observed)


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One entry of a schedule; in force until the next one begins."""

    begins: datetime
    merged: Merged


def is_of_the_fleet(path: str) -> bool:
    """Whether a field is for the relay that leads, and no engine is sent it."""
    return path.startswith("ejection.")


def _expires_at(policy: Manifest) -> datetime | None:
    return policy.spec.expires_at


def effective_schedule(
    policies: Iterable[Manifest], target: Target, now: datetime, end_of: EndOf = _expires_at
) -> tuple[ScheduleStep, ...]:
    """Return the schedule of *target*; never empty, and adjacent steps differ by hash.

    The first step begins *now*, the others when policies end; *end_of* says when.
    """
    return build_schedule(policies_selecting(policies, target), now, end_of)


def policies_selecting(policies: Iterable[Manifest], target: Target) -> list[Manifest]:
    """Return those of *policies* that select *target*, expired or not, each in the version that *target* has."""
    return [version for policy in policies if (version := policy.version_for(target)) is not None]


def build_schedule(
    selecting: Iterable[Manifest], now: datetime, end_of: EndOf = _expires_at
) -> tuple[ScheduleStep, ...]:
    """Return what :func:`effective_schedule` does for an engine that exactly these policies select."""
    ends = [(policy, end_of(policy)) for policy in selecting]
    changes = sorted({end for _, end in ends if end is not None and end > now})
    steps = [
        ScheduleStep(time, merge_policies([policy for policy, end in ends if end is None or end > time]))
        for time in (now, *changes)
    ]
    return (
        steps[0],
        *(after for before, after in pairwise(steps) if before.merged.hash != after.merged.hash),
    )


def merge_policies(policies: Iterable[Manifest]) -> Merged:
    """Merge policies, in any order."""
    return _merge(_Ranked(sorted(policies, key=lambda policy: (-policy.spec.priority, policy.name))))


class _Ranked:
    """Policies by rank; equal if their texts are."""

    __slots__ = ("_texts", "policies")

    def __init__(self, policies: Sequence[Manifest]) -> None:
        self.policies = policies
        self._texts = tuple(policy.canonical for policy in policies)

    def __hash__(self) -> int:
        return hash(self._texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ranked) and self._texts == other._texts


# Most engines share their policies, and a change merges them several times.
@lru_cache(maxsize=128)
def _merge(of: _Ranked) -> Merged:
    ranked = [policy for policy in of.policies if not all(map(is_of_the_fleet, policy.leaves))]
    body = _overlay([policy for policy in ranked if policy.spec.mode == "enforce"])
    observing = any(policy.spec.mode == "observe" for policy in ranked)
    observed = _overlay(ranked) if observing else None
    return Merged(body, observed, _digest(body, observed))


def _overlay(ranked: Iterable[Manifest]) -> dict[str, FieldSource]:
    merged: dict[str, FieldSource] = {}
    for policy in ranked:
        for path, value in policy.leaves.items():
            if is_of_the_fleet(path):
                continue
            merged.setdefault(path, FieldSource(value, policy.name))
    return dict(sorted(merged.items()))


def _values(given: Mapping[str, FieldSource]) -> Leaves:
    return {path: item.value for path, item in given.items()}


def _digest(body: Mapping[str, FieldSource], observed: Mapping[str, FieldSource] | None) -> str:
    if not body and observed is None:
        return ""
    content = {"body": unflatten(_values(body))}
    if observed is not None:
        content["observed"] = unflatten(_values(observed))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
