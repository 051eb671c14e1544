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
        squares: of what was added to ``deferred`` and ``recomputed`` from look to look, their sums; see :meth:`adding`.

    """

    requests: float = 0
    failed: float = 0
    deferred: float = 0.0
    recomputed: float = 0
    squares: tuple[float, float] = (0.0, 0.0)

    def since(self, before: EngineCounts) -> EngineCounts:
        """Return what was counted after *before*.

        Where the requests have begun again, the engine was forgotten, and all is new. Where another count has fallen,
        a part of it was forgotten, such as that of a peer; what is left of it is old.
        """
        if self.requests < before.requests:
            return self
        requests, failed, deferred, recomputed = (
            max(now - then, 0) for now, then in zip(self._all(), before._all(), strict=True)
        )
        return EngineCounts(requests, failed, deferred, recomputed)

    def adding(self, more: EngineCounts) -> EngineCounts:
        """Return the sum with what came between two looks; so large amounts that come at once are known as such."""
        return EngineCounts(
            self.requests + more.requests,
            self.failed + more.failed,
            self.deferred + more.deferred,
            self.recomputed + more.recomputed,
            (self.squares[0] + more.deferred**2, self.squares[1] + more.recomputed**2),
        )

    def _all(self) -> tuple[float, float, float, float]:
        return self.requests, self.failed, self.deferred, self.recomputed


@dataclass(frozen=True, slots=True)
class Measure:
    """An amount per request.

    Attributes:
        of: the amount in an engine's counts.
        squares: the sum of the squares of what came at once; of a count, the count.
        grain: the least that counts as one piece of evidence.
        unseen: the same, as long as no engine has shown one.
        floor: amount per request up to which a group is well, whatever the other one has.
        words: what it is, for a sentence; it follows the amount.
        scale: of the amount per request in a sentence: 100 for percent.

    """

    name: str
    of: Callable[[EngineCounts], float]
    squares: Callable[[EngineCounts], float]
    grain: float
    unseen: float
    floor: float
    words: str
    scale: float = 1.0


MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            "failed",
            lambda counts: counts.failed,
            lambda counts: counts.failed,
            1.0,
            1.0,
            0.001,
            "% of requests failed",
            100.0,
        ),
        Measure(
            "deferred",
            lambda counts: counts.deferred,
            lambda counts: counts.squares[0],
            0.1,
            3.0,
            0.01,
            "s deferred per request",
        ),
        Measure(
            "recomputed",
            lambda counts: counts.recomputed,
            lambda counts: counts.squares[1],
            16.0,
            1024.0,
            1.0,
            "tokens recomputed per request",
        ),
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
