"""What two groups of engines are compared by: their counts, and conditions such as ``failed>2x``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CONDITION = re.compile(r"([a-z]+)>([0-9]{1,4}(?:\.[0-9]{1,2})?)x")
_LEAST, _MOST = 1.1, 1000.0


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What one engine has counted, in all or in a time.

    Attributes:
        requests: that left the scheduler.
        failed: that ended as failed because a load had failed.
        deferred: seconds of all deferrals that ended.
        recomputed: prompt tokens computed again because their load had failed.

    """

    requests: float = 0
    failed: float = 0
    deferred: float = 0.0
    recomputed: float = 0

    def since(self, before: EngineCounts) -> EngineCounts:
        """Return what was counted after *before*; what was counted anew, where a counter has begun again."""
        if any(now < then for now, then in zip(self._all(), before._all(), strict=True)):
            return self
        return EngineCounts(*(now - then for now, then in zip(self._all(), before._all(), strict=True)))

    def _all(self) -> tuple[float, float, float, float]:
        return self.requests, self.failed, self.deferred, self.recomputed


@dataclass(frozen=True, slots=True)
class Measure:
    """An amount per request.

    Attributes:
        of: the amount in an engine's counts.
        grain: the least amount that one cause adds; what no engine has shown may still come as one of these.
        floor: amount per request up to which a group is well, whatever the other one has.
        words: what it is, for a sentence; it follows the amount.
        scale: of the amount per request in a sentence: 100 for percent.

    """

    name: str
    of: Callable[[EngineCounts], float]
    grain: float
    floor: float
    words: str
    scale: float = 1.0


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("failed", lambda counts: counts.failed, 1.0, 0.001, "% of requests failed", 100.0),
        Measure("deferred", lambda counts: counts.deferred, 0.1, 0.01, "s deferred per request"),
        Measure("recomputed", lambda counts: counts.recomputed, 16.0, 1.0, "tokens recomputed per request"),
    )
}


@dataclass(frozen=True, slots=True)
class AbortCondition:
    """The engines with a policy have more than *limit* times as much of a measure as those without it."""

    measure: Measure
    limit: float

    def __str__(self) -> str:
        """Return what :func:`parse_condition` parses."""
        return f"{self.measure.name}>{self.limit:g}x"


def parse_condition(text: str) -> AbortCondition:
    """Parse a condition such as ``failed>2x`` or ``deferred>1.5x``.

    Raises:
        ContractError: it cannot be read, or its limit is out of bounds.

    """
    match = _CONDITION.fullmatch(text.replace(" ", ""))
    measure = MEASURES.get(match[1]) if match else None
    if match is None or measure is None:
        raise ContractError(
            f"abort condition {text!r:.60} cannot be read; write failed>2x, deferred>1.5x or recomputed>2x"
        )
    limit = float(match[2])
    if not _LEAST <= limit <= _MOST:
        raise ContractError(
            f"abort condition {text!r:.60} has a limit of {limit:g}; use one from {_LEAST:g} to {_MOST:g}"
        )
    return AbortCondition(measure, limit)


def parse_conditions(texts: Iterable[str]) -> tuple[AbortCondition, ...]:
    """Parse conditions, one a measure.

    Raises:
        ContractError: one cannot be read, or a measure comes twice.

    """
    conditions = tuple(map(parse_condition, texts))
    names = [condition.measure.name for condition in conditions]
    for name in names:
        if names.count(name) > 1:
            raise ContractError(f"there are two abort conditions about {name!r}; keep one")
    return conditions
