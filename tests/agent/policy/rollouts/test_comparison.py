"""The comparison of two groups of engines: errors by simulation with fixed seeds, and its sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import ContractError
from penstock.agent.policy.rollouts import comparison
from penstock.agent.policy.rollouts.comparison import (
    FALSE_ABORTS,
    MEASURES,
    AbortCondition,
    Comparison,
    EngineCounts,
    compare,
    parse_condition,
    parse_conditions,
    share_of_errors,
)

FAILED = parse_condition("failed>2x")
DEFAULTS = parse_conditions(["failed>2x", "deferred>1.5x", "recomputed>2x"])
LOOKS = 24


@dataclass(frozen=True)
class Fleet:
    """Engines of a simulation.

    Attributes:
        rate: failures a request.
        spread: coefficient of variation of the engines' rates; it stays with an engine.
        burst: failures that come together, on average; 1 for none.
        weather: coefficient of variation of the rate of all engines, anew at each look.

    """

    engines: int = 60
    treated: int = 3
    rate: float = 0.01
    requests: float = 400.0
    spread: float = 0.0
    burst: float = 1.0
    weather: float = 0.0


SMOOTH = Fleet()
SPREAD = Fleet(spread=0.5)
WILD = Fleet(spread=1.0, treated=5)
BURSTS = Fleet(burst=40.0, rate=0.02)
RARE_BURSTS = Fleet(burst=100.0, rate=0.002)
WEATHER = Fleet(weather=2.0, spread=0.3)
HALVES = Fleet(engines=24, treated=12, spread=0.7, burst=10.0)
FEW = Fleet(engines=6, treated=3, spread=0.4)
QUIET = Fleet(rate=0.0002, burst=5.0)
ALL = {
    "smooth": SMOOTH, "spread": SPREAD, "wild": WILD, "bursts": BURSTS, "rare bursts": RARE_BURSTS,
    "weather": WEATHER, "halves": HALVES, "few": FEW, "quiet": QUIET,
}  # fmt: skip


def verdicts(
    fleet: Fleet, effect: float, seed: int, *, error: float = FALSE_ABORTS, looks: int = LOOKS
) -> str:
    """Return the first verdict that is not undecided, over all looks."""
    chance = np.random.default_rng(seed)
    own = _gamma(chance, fleet.spread, fleet.engines) * fleet.rate
    own[: fleet.treated] *= effect
    requests, failed = np.zeros(fleet.engines), np.zeros(fleet.engines)
    for _ in range(looks):
        served = chance.poisson(fleet.requests, fleet.engines)
        mean = own * served * _gamma(chance, fleet.weather, 1)
        bursts = chance.poisson(mean / fleet.burst)
        failed += bursts if fleet.burst == 1 else chance.poisson(bursts * fleet.burst)
        requests += served
        counts = [EngineCounts(*pair) for pair in zip(requests.tolist(), failed.tolist(), strict=True)]
        found = compare(FAILED, counts[: fleet.treated], counts[fleet.treated :], error)
        if found.verdict != "undecided":
            return found.verdict
    return "undecided"


def _gamma(chance: np.random.Generator, variation: float, size: int) -> np.ndarray:
    if not variation:
        return np.ones(size)
    shape = 1 / variation**2
    return chance.gamma(shape, 1 / shape, size)


def share(fleet: Fleet, effect: float, verdict: str, runs: int = 200) -> float:
    """Return the share of roll-outs that end with *verdict*."""
    return sum(verdicts(fleet, effect, seed) == verdict for seed in range(runs)) / runs


@pytest.mark.parametrize("name", ALL)
def test_a_harmless_policy_is_seldom_called_worse(name: str) -> None:
    """At most 5 percent, though engines differ, failures come together, and it is looked at 24 times."""
    assert share(ALL[name], 1.0, "worse") <= FALSE_ABORTS


@pytest.mark.parametrize("name", ["bursts", "halves"])
def test_requests_are_not_the_units(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can tell: with requests as independent units the same fleets abort far too often."""
    monkeypatch.setattr(comparison, "_dispersion", lambda *_: 1.0)
    assert share(ALL[name], 1.0, "worse", runs=60) > 2 * FALSE_ABORTS


@pytest.mark.parametrize("name", ["smooth", "bursts", "spread", "halves"])
def test_a_policy_that_helps_is_seldom_called_worse(name: str) -> None:
    """Still less than one that does nothing."""
    assert share(ALL[name], 0.5, "worse") <= FALSE_ABORTS


def test_a_doubling_is_found() -> None:
    """In 15 of 60 engines that differ by a third; in a smooth fleet in 3 of them."""
    assert share(SMOOTH, 2.0, "worse") >= 0.9
    assert share(Fleet(treated=15, spread=0.3), 2.0, "worse") >= 0.9


def test_a_disaster_is_found_in_three_engines() -> None:
    """A third of the requests fails where one in a hundred did, whatever the engines are like."""
    for fleet in (SMOOTH, SPREAD, BURSTS, WEATHER):
        assert share(fleet, 30.0, "worse", runs=60) >= 0.9


def test_a_doubling_seldom_passes() -> None:
    """The other error: "not worse" of a policy that doubles the failures."""
    for fleet in (SMOOTH, SPREAD, HALVES, BURSTS):
        assert share(fleet, 2.0, "not_worse") <= 0.05


def test_a_harmless_policy_passes_in_time() -> None:
    """An answer comes, too."""
    assert share(SMOOTH, 1.0, "not_worse") >= 0.9
    assert share(Fleet(treated=15, spread=0.3), 1.0, "not_worse") >= 0.9


def test_the_errors_of_all_tests_are_five_percent() -> None:
    """However many steps and conditions there are."""
    for conditions in (1, 3):
        total = math.fsum(conditions * share_of_errors(conditions, test) for test in range(1, 10_000))
        assert FALSE_ABORTS * 0.999 < total <= FALSE_ABORTS


def _same(counts: EngineCounts, times: int) -> list[EngineCounts]:
    return [counts] * times


def _verdict(treated: list[EngineCounts], control: list[EngineCounts]) -> Comparison:
    return compare(FAILED, treated, control, 0.05)


def test_one_engine_is_no_group() -> None:
    """What it shows may be its own."""
    bad, good = EngineCounts(1000, 900), EngineCounts(1000, 10)
    alone = _verdict([bad], _same(good, 20))
    assert (alone.verdict, alone.evidence) == (
        "undecided",
        "failed>2x: 1 engine with the policy has served requests, at least 2 are compared",
    )
    assert _verdict(_same(bad, 3), [good]).verdict == "undecided"
    assert "no engine without it" in _verdict(_same(bad, 3), [EngineCounts()]).evidence


def test_one_bad_engine_is_not_the_policy() -> None:
    """One of five fails everything: its card may be broken."""
    treated = [EngineCounts(1000, 900), *_same(EngineCounts(1000, 10), 4)]
    assert _verdict(treated, _same(EngineCounts(1000, 10), 40)).verdict != "worse"


def test_one_bad_engine_with_little_traffic_is_not_the_policy() -> None:
    """It has fewer failures than the others, and still makes the difference alone."""
    control = [EngineCounts(100_000, 1_000)] * 40
    treated = [EngineCounts(100_000, 1_010), EngineCounts(100_000, 1_005), EngineCounts(1_100, 1_004)]
    group = comparison._Group(tuple((counts.failed, counts.requests) for counts in treated))
    outside = comparison._Group(tuple((counts.failed, counts.requests) for counts in control))
    assert not comparison._is_worse(parse_condition("failed>1.4x"), group, outside, 0.1, 3.0)


def test_equal_prompts_are_no_proof() -> None:
    """One prompt was computed again in each of two engines of four: that is likely, and 8,192 tokens are one event."""
    recomputed = parse_condition("recomputed>2x")
    once = EngineCounts(1_000).adding(EngineCounts(recomputed=8_192))
    found = compare(recomputed, [once, once], [EngineCounts(1_000)] * 2, 0.05)
    assert found.verdict == "undecided"


def test_an_outage_of_all_engines_is_not_the_policy() -> None:
    """Both groups fail half of their requests."""
    assert (
        _verdict(_same(EngineCounts(1000, 500), 3), _same(EngineCounts(1000, 500), 57)).verdict == "not_worse"
    )


def test_what_none_has_is_fine_after_enough_requests() -> None:
    """No failure in 1,000 requests may yet become one in a thousand; none in 10,000 is well."""
    assert _verdict(_same(EngineCounts(200), 5), _same(EngineCounts(200), 20)).verdict == "undecided"
    assert _verdict(_same(EngineCounts(2000), 5), _same(EngineCounts(2000), 20)).verdict == "not_worse"


def test_the_evidence_is_a_sentence() -> None:
    """With numbers of both groups."""
    found = _verdict(
        [EngineCounts(1000, n) for n in (300, 310, 290)], [EngineCounts(1000, 10 + n % 2) for n in range(20)]
    )
    assert found == Comparison(
        FAILED,
        "worse",
        "failed>2x: 30 % of requests failed in 3 engines with the policy (3000 requests), "
        "1.05 in 20 without it (20000 requests): 28.6x",
    )


COUNTS = st.builds(
    EngineCounts,
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.floats(0, 1e9),
    st.integers(0, 10**12),
)


@given(st.sampled_from(DEFAULTS), st.lists(COUNTS, max_size=6), st.lists(COUNTS, max_size=6), st.randoms())
def test_any_counts_have_an_answer_of_any_order(condition, treated, control, chance) -> None:
    """It never raises, and engines have no order."""
    found = compare(condition, treated, control, 0.01)
    assert found.verdict in {"worse", "not_worse", "undecided"}
    treated, control = treated.copy(), control.copy()
    chance.shuffle(treated)
    chance.shuffle(control)
    assert compare(condition, treated, control, 0.01).verdict == found.verdict


@given(COUNTS, COUNTS)
def test_a_counter_that_begins_again_is_counted_anew(before: EngineCounts, now: EngineCounts) -> None:
    """As Prometheus does; never a negative amount."""
    since = now.since(before)
    for measure in MEASURES.values():
        assert measure.of(since) >= 0
    assert now.since(now) == EngineCounts()


@pytest.mark.parametrize(
    "text", ["failed", "failed>2", "failed>1x", "late>2x", "failed<2x", "failed>2000x", ""]
)
def test_a_bad_condition_is_refused(text: str) -> None:
    """The sentence says how one is written."""
    with pytest.raises(ContractError, match=r"write failed>2x|use one from"):
        parse_condition(text)


def test_conditions_are_written_as_they_are_read() -> None:
    """One a measure."""
    assert [str(parse_condition(text)) for text in ("failed > 2x", "deferred>1.5x")] == [
        "failed>2x",
        "deferred>1.5x",
    ]
    assert AbortCondition(MEASURES["failed"], 2.0) == FAILED
    with pytest.raises(ContractError, match="two abort conditions about 'failed'"):
        parse_conditions(["failed>2x", "failed>3x"])
