"""Compares the engines that have a policy with those that do not: a sequential test that may be looked at at any time. Pure.

Wald's sequential probability ratio test between "no worse" (the ratio of the two rates is 1) and "worse" (it is the
limit of the condition), given the total of both groups: so a rate that changes for all engines, such as a network that
fails, is no evidence. Engines differ from each other, and failures of one engine come together; so the evidence is
divided by the dispersion between engines of one group (quasi-likelihood), of which an upper bound is taken. It is at
least what comes at once: one prompt of 8,192 tokens is one piece of evidence, and not 8,192. Where one
engine alone makes the difference, that is the engine's and not the policy's: each one is left out in turn.
docs/decisions/0073-how-a-roll-out-compares.md has the assumptions and what they cost.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from penstock.agent.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


Verdict = Literal["worse", "not_worse", "undecided"]

FALSE_ABORTS = 0.05
"""Share of roll-outs of a harmless policy that may abort, over all looks, conditions and steps."""
# A harmful policy that counts as harmless may be as frequent, in each condition.
_FALSE_PASSES = 0.05
# Of a group; each one is left out once.
LEAST_ENGINES = 2
# Below this quantile of chi-square the dispersion is not expected.
_DISPERSION_QUANTILE = NormalDist().inv_cdf(0.05)
# Of a Poisson variable, of which none was seen.
_UNSEEN = 3.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict of one condition.

    Attributes:
        evidence: a sentence with the numbers.

    """

    condition: AbortCondition
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class _Group:
    """The engines of a group that have served requests: amount and requests of each."""

    engines: tuple[tuple[float, float], ...]

    @cached_property
    def amount(self) -> float:
        return math.fsum(amount for amount, _ in self.engines)

    @cached_property
    def requests(self) -> float:
        return math.fsum(requests for _, requests in self.engines)

    @cached_property
    def rate(self) -> float:
        return self.amount / self.requests if self.requests else 0.0

    def pearson(self) -> tuple[float, int]:
        """Return Pearson's chi-square about the group's rate, and its degrees of freedom; none where nothing happened."""
        rate = self.rate
        if not rate:
            return 0.0, 0
        total = math.fsum(
            (amount - rate * requests) ** 2 / (rate * requests) for amount, requests in self.engines
        )
        return total, len(self.engines) - 1


def share_of_errors(conditions: int, test: int) -> float:
    """Return the share of false aborts of one condition in the *test*-th test of a roll-out, from 1.

    The sum over all tests and conditions is :data:`FALSE_ABORTS`, however many tests there are.
    """
    return FALSE_ABORTS / (conditions * test * (test + 1))


def compare(
    condition: AbortCondition,
    treated: Sequence[EngineCounts],
    control: Sequence[EngineCounts],
    error: float,
) -> Comparison:
    """Compare the engines with the policy and those without, by what each has counted since the step began.

    Args:
        condition: the measure and its limit.
        treated: an entry an engine; those without requests are left out.
        control: likewise.
        error: probability of "worse" for a harmless policy, over all looks.

    """
    measure = condition.measure
    inside, outside = (
        _Group(tuple((measure.of(counts), counts.requests) for counts in group if counts.requests > 0))
        for group in (treated, control)
    )
    few = _too_few(inside, outside)
    if few:
        return Comparison(condition, "undecided", f"{condition}: {few}")
    grain = _grain(measure, (*treated, *control))
    dispersion = _dispersion(inside, outside, grain)
    verdict: Verdict = "undecided"
    worse = -math.log(error)
    if _is_worse(condition, inside, outside, dispersion, worse):
        verdict = "worse"
    elif _is_fine(condition, inside, outside, dispersion, grain):
        verdict = "not_worse"
    return Comparison(condition, verdict, f"{condition}: {_numbers(condition, inside, outside)}")


def _too_few(inside: _Group, outside: _Group) -> str:
    for group, which in ((inside, "with the policy"), (outside, "without it")):
        count = len(group.engines)
        if count < LEAST_ENGINES:
            engines = "no engine" if not count else "1 engine"
            return f"{engines} {which} has served requests, at least {LEAST_ENGINES} are compared"
    return ""


def _is_worse(
    condition: AbortCondition, inside: _Group, outside: _Group, dispersion: float, threshold: float
) -> bool:
    if inside.rate <= condition.measure.floor:
        return False
    # With all of them, and without each one.
    return all(
        _log_ratio((inside.amount - amount, inside.requests - requests), outside, condition.limit)
        > threshold * dispersion
        for amount, requests in ((0.0, 0.0), *inside.engines)
    )


def _is_fine(
    condition: AbortCondition, inside: _Group, outside: _Group, dispersion: float, grain: float
) -> bool:
    measure = condition.measure
    # So little that the ratio does not matter.
    unseen = _UNSEEN * max(dispersion if math.isfinite(dispersion) else 0.0, grain)
    if (inside.amount + unseen) / inside.requests <= measure.floor:
        return True
    return (
        -_log_ratio((inside.amount, inside.requests), outside, condition.limit)
        > -math.log(_FALSE_PASSES) * dispersion
    )


def _log_ratio(inside: tuple[float, float], outside: _Group, limit: float) -> float:
    """Return the logarithm of the likelihood of the limit's ratio over that of 1, in the amount's unit.

    Args:
        inside: amount and requests with the policy.
        outside: the engines without it.
        limit: the ratio that is too much.

    """
    amount, requests = inside
    share = requests / (requests + outside.requests)
    tilted = limit * share / (limit * share + 1 - share)
    return amount * math.log(tilted / share) + outside.amount * math.log((1 - tilted) / (1 - share))


def _grain(measure: Measure, engines: Iterable[EngineCounts]) -> float:
    """Return how much comes at once: the mean of it, each weighted by itself, as in the variance of such sums."""
    amounts, squares = zip(
        *((measure.of(counts), measure.squares(counts)) for counts in engines), strict=True
    )
    amount = math.fsum(amounts)
    return max(measure.grain, math.fsum(squares) / amount) if amount else measure.unseen


def _dispersion(inside: _Group, outside: _Group, grain: float) -> float:
    """Return an upper bound of the variance over the mean, between engines of one group, in the amount's unit; at least *grain*."""
    chi_squares, freedoms = zip(inside.pearson(), outside.pearson(), strict=True)
    freedom = sum(freedoms)
    if not freedom:
        return grain if not (inside.amount or outside.amount) else math.inf
    # Wilson and Hilferty's approximation of the quantile.
    term = 2 / (9 * freedom)
    quantile = freedom * max(1 - term + _DISPERSION_QUANTILE * math.sqrt(term), 0.0) ** 3
    if not quantile:
        return math.inf
    return max(math.fsum(chi_squares) / quantile, grain)


def _numbers(condition: AbortCondition, inside: _Group, outside: _Group) -> str:
    scale, words = condition.measure.scale, condition.measure.words
    ratio = (
        f"{inside.rate / outside.rate:.3g}x"
        if outside.rate
        else "none without it"
        if inside.rate
        else "no difference"
    )
    return (
        f"{inside.rate * scale:.3g} {words} in {len(inside.engines)} engines with the policy "
        f"({inside.requests:.0f} requests), {outside.rate * scale:.3g} in {len(outside.engines)} without it "
        f"({outside.requests:.0f} requests): {ratio}"
    )
