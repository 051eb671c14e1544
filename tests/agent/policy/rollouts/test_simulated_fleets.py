"""False aborts and power of all three conditions, in fleets that a test statistic is not made for; fixed seeds.

Independent of the comparison: each engine draws causes and their amounts, look by look, and what an operator would see is
compared. A fleet is a function of a generator and the number of engines; it gives what each engine adds in one look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from penstock.agent.policy.rollouts.comparison import FALSE_ABORTS, EngineCounts, compare, parse_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from penstock.agent.policy.rollouts.comparison import AbortCondition

    # Of requests served and effect of the policy, an entry an engine, and the number of the look.
    Look = Callable[[NDArray[np.float64], NDArray[np.float64], int], NDArray[np.float64]]
    Fleet = Callable[[np.random.Generator, int], Look]

FAILED, DEFERRED, RECOMPUTED = map(parse_condition, ("failed>2x", "deferred>1.5x", "recomputed>2x"))
LOOKS, REQUESTS = 24, 400.0
RUNS = 80


def causes(
    rate: float, *, size: float = 1.0, tail: float = 0.0, small: tuple[float, float] = (0, 0)
) -> Fleet:
    """Independent causes, *rate* a request; lognormal amounts of median *size* with sigma *tail*; and *small* ones."""

    def fleet(chance: np.random.Generator, _: int) -> Look:
        def look(served: NDArray[np.float64], effect: NDArray[np.float64], _: int) -> NDArray[np.float64]:
            large = [
                size * np.exp(chance.normal(0, tail, count)).sum()
                for count in chance.poisson(served * rate * effect)
            ]
            return np.array(large) + chance.poisson(served * small[0] * effect) * small[1]

        return look

    return fleet


def engines_differ(rate: float, *, sigma: float = 0.0, alpha: float = 0.0) -> Fleet:
    """Failures at a rate of each engine's own: lognormal, or by Pareto's law with a tail of *alpha*."""

    def fleet(chance: np.random.Generator, engines: int) -> Look:
        own = (
            np.exp(chance.normal(-(sigma**2) / 2, sigma, engines))
            if sigma
            else 1 + chance.pareto(alpha, engines)
        )
        return lambda served, effect, _: (
            chance.poisson(np.minimum(served * rate * own * effect, served)) * 1.0
        )

    return fleet


def bad_peer(share: float, *, rate: float = 0.005, bad: float = 0.3, together: bool = False) -> Fleet:
    """From the seventh look on, a peer fails for a *share* of the engines: any, or those of one of the racks."""

    def fleet(chance: np.random.Generator, engines: int) -> Look:
        width = max(1, round(engines * share))
        place = chance.permutation(engines)
        hit = place // width == chance.integers(0, engines // width) if together else place < width

        def look(
            served: NDArray[np.float64], effect: NDArray[np.float64], number: int
        ) -> NDArray[np.float64]:
            rates = np.where(hit & (number > 5), bad, rate)
            return chance.poisson(served * np.minimum(rates * effect, 1.0)) * 1.0

        return look

    return fleet


def verdict(
    condition: AbortCondition,
    engines: int,
    treated: int,
    fleet: Fleet,
    seed: int,
    *,
    effect: float = 1.0,
    traffic: float = 0.0,
) -> str:
    """Return the first verdict that is not undecided; *traffic*: sigma of the engines' lognormal shares of it."""
    chance = np.random.default_rng(seed)
    look = fleet(chance, engines)
    load = REQUESTS * np.exp(chance.normal(0, traffic, engines))
    effects = np.where(np.arange(engines) < treated, effect, 1.0)
    counts = [EngineCounts()] * engines
    for number in range(LOOKS):
        served = chance.poisson(load) * 1.0
        amounts = look(served, effects, number).tolist()
        counts = [
            before.adding(EngineCounts(requests, **{condition.measure.name: amount}))
            for before, requests, amount in zip(counts, served.tolist(), amounts, strict=True)
        ]
        found = compare(condition, counts[:treated], counts[treated:], FALSE_ABORTS).verdict
        if found != "undecided":
            return found
    return "undecided"


FLEETS: dict[str, tuple[AbortCondition, int, int, Fleet]] = {
    "prompts of one size, 2 of 4": (RECOMPUTED, 4, 2, causes(0.0005, size=8_192)),
    "prompts of one size, 3 of 6": (RECOMPUTED, 6, 3, causes(0.0005, size=8_192)),
    "prompts of any size, 3 of 60": (RECOMPUTED, 60, 3, causes(0.01, size=4_000, tail=2.0)),
    "few large among many small, 2 of 4": (RECOMPUTED, 4, 2, causes(0.0005, size=60_000, small=(0.05, 64))),
    "waits of one length, 2 of 8": (DEFERRED, 8, 2, causes(0.0005, size=30.0)),
    "waits of any length, 12 of 24": (DEFERRED, 24, 12, causes(0.002, size=0.5, tail=2.0)),
    "few long among many short, 2 of 4": (DEFERRED, 4, 2, causes(0.001, size=30.0, small=(0.5, 0.002))),
    "few long among many short, 12 of 24": (DEFERRED, 24, 12, causes(0.001, size=30.0, small=(0.5, 0.002))),
    "engines differ, lognormal, 2 of 4": (FAILED, 4, 2, engines_differ(0.01, sigma=1.0)),
    "engines differ, lognormal, 3 of 60": (FAILED, 60, 3, engines_differ(0.01, sigma=2.0)),
    "engines differ, Pareto 1.1, 12 of 24": (FAILED, 24, 12, engines_differ(0.01, alpha=1.1)),
    "a bad peer of 4 engines, 3 of 60": (FAILED, 60, 3, bad_peer(4 / 60)),
    "a bad peer of 3 engines, 4 of 8": (FAILED, 8, 4, bad_peer(3 / 8)),
    "a bad rack of 5 engines, 3 of 60": (FAILED, 60, 3, bad_peer(5 / 60, together=True)),
}


def share(name: str, wanted: str, *, effect: float = 1.0, traffic: float = 0.0) -> float:
    """Return the share of roll-outs that end with *wanted*."""
    found = [verdict(*FLEETS[name], seed, effect=effect, traffic=traffic) == wanted for seed in range(RUNS)]
    return sum(found) / RUNS


# One of each kind of cause, and each number of engines, is for every run.
_ALWAYS = {
    "prompts of one size, 2 of 4",
    "waits of any length, 12 of 24",
    "few long among many short, 12 of 24",
    "engines differ, lognormal, 3 of 60",
    "a bad peer of 3 engines, 4 of 8",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in _ALWAYS)) for name in FLEETS]
)
def test_a_harmless_policy_is_seldom_called_worse(name: str) -> None:
    """Also where one engine serves ten times as much as another."""
    assert share(name, "worse") <= FALSE_ABORTS
    assert share(name, "worse", traffic=1.0) <= FALSE_ABORTS


@pytest.mark.parametrize(
    "name",
    [
        "prompts of one size, 2 of 4",
        pytest.param("prompts of one size, 3 of 6", marks=pytest.mark.long),
        pytest.param("prompts of any size, 3 of 60", marks=pytest.mark.long),
        pytest.param("few large among many small, 2 of 4", marks=pytest.mark.long),
        "few long among many short, 12 of 24",
    ],
)
def test_a_doubling_seldom_passes_unseen(name: str) -> None:
    """None seen yet is no proof: the next cause may be a long prompt."""
    assert share(name, "not_worse", effect=2.0) <= FALSE_ABORTS


@pytest.mark.parametrize(
    ("name", "effect", "least"),
    [
        ("few long among many short, 12 of 24", 2.0, 0.9),
        pytest.param("a bad peer of 4 engines, 3 of 60", 2.0, 0.6, marks=pytest.mark.long),
        ("prompts of one size, 3 of 6", 30.0, 0.9),
        pytest.param("prompts of any size, 3 of 60", 30.0, 0.9, marks=pytest.mark.long),
        pytest.param("waits of one length, 2 of 8", 100.0, 0.9, marks=pytest.mark.long),
        ("a bad peer of 3 engines, 4 of 8", 60.0, 0.9),
    ],
)
def test_harm_is_found(name: str, effect: float, least: float) -> None:
    """A doubling in many engines, a disaster in few."""
    assert share(name, "worse", effect=effect) >= least
