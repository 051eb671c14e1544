"""The search never recommends what fails more, asks for a bounded number of replays, and takes the best of a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.replay import (
    MAX_REPLAYS,
    Counts,
    Seen,
    Trial,
    is_better,
    is_harmless,
    search,
    wait_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.agent.replay import Value

_SECOND = 1_000_000_000
_MILLISECOND = 1_000_000
_TODAY = Trial({}, Counts(loads=100, loaded=80, failed=20, waited_ns=100 * _SECOND))
_KV, _ACTION = "kvLoadFailure.action", "recompute"


def _changed(fields: Mapping[str, Value], in_flight: int = 0, **counts: int) -> Trial:
    return Trial(fields, replace(_TODAY.counts, **counts), in_flight)


_counts = st.builds(
    Counts,
    loaded=st.integers(0, 100),
    failed=st.integers(0, 100),
    unknown=st.integers(0, 20),
    recomputed=st.integers(0, 20),
    tokens_recomputed=st.integers(0, 10_000),
    waited_ns=st.integers(0, 1000 * _SECOND),
)
_trials = st.builds(Trial, st.just({}), _counts, st.integers(0, 5))
_waits = st.lists(st.integers(0, 2**64), max_size=20).map(tuple)
_seen = st.builds(Seen, st.booleans(), st.booleans(), _waits, _waits)


@given(_trials, _seen, st.data())
def test_what_is_recommended_harms_nothing(today: Trial, seen: Seen, data: st.DataObject) -> None:
    """Whatever candidates replay to: no more failed loads in the worst case, and better than today by its own measure."""
    asked: list[Mapping[str, Value]] = []

    def replayed(fields: Mapping[str, Value]) -> Trial:
        assert fields not in asked
        asked.append(fields)
        drawn = data.draw(_trials)
        return Trial(fields, drawn.counts, drawn.in_flight)

    found = search(today, seen, replayed)
    assert len(asked) == len(found.trials) <= MAX_REPLAYS
    if found.best is not None:
        assert found.best.fields in asked
        assert is_harmless(found.best, today)
        assert is_better(found.best, today, today)
        assert found.best.counts.failed <= today.counts.failed
    elif found.complete:
        assert not any(is_harmless(each, today) and is_better(each, today, today) for each in found.trials)


@given(_trials, _seen)
def test_the_same_is_searched_twice(today: Trial, seen: Seen) -> None:
    """The order of the candidates depends on the question only."""

    def replayed(fields: Mapping[str, Value]) -> Trial:
        return Trial(fields, replace(today.counts, failed=max(0, today.counts.failed - len(fields))))

    assert search(today, seen, replayed) == search(today, seen, replayed)


@given(_trials, _trials, _trials)
def test_better_has_one_direction(first: Trial, second: Trial, today: Trial) -> None:
    """Of two replays at most one is better, and none than itself."""
    assert not (is_better(first, second, today) and is_better(second, first, today))
    assert not is_better(first, first, today)


@pytest.mark.parametrize(
    ("trial", "better", "harmless"),
    [
        (_changed({}), False, True),
        (_changed({}, failed=0, recomputed=20, tokens_recomputed=9000), True, True),
        (_changed({}, failed=19, waited_ns=900 * _SECOND), True, True),
        (_changed({}, failed=21, waited_ns=0), False, False),
        # Four per cent of the waits are no reason, five are.
        (_changed({}, waited_ns=96 * _SECOND), False, True),
        (_changed({}, waited_ns=95 * _SECOND), True, True),
        # Not known, or cut in mid-transfer, is as good as failed.
        (_changed({}, failed=0, unknown=21), False, False),
        (_changed({}, waited_ns=0, in_flight=1), False, False),
        (_changed({}, failed=18, in_flight=1), True, True),
        # One in a hundred that succeed today is given up for less waiting, two are not.
        (_changed({}, loaded=79, waited_ns=0), True, False),
        (_changed({}, loaded=80, waited_ns=0), True, True),
    ],
)
def test_better_and_harmless(trial: Trial, better: bool, harmless: bool) -> None:
    """Failed loads first, then waits; and what today brings stays."""
    assert (is_better(trial, _TODAY, _TODAY), is_harmless(trial, _TODAY)) == (better, harmless)


def test_fewer_tokens_count_last() -> None:
    """Only where neither failures nor waits grow."""
    today = _changed({}, tokens_recomputed=1000)
    assert is_better(_changed({}, tokens_recomputed=900), today, today)
    assert not is_better(_changed({}, tokens_recomputed=990), today, today)
    assert not is_better(_changed({}, tokens_recomputed=0, waited_ns=101 * _SECOND), today, today)


def _table(*better: tuple[dict[str, Any], dict[str, int]]) -> Callable[[Mapping[str, Value]], Trial]:
    def replayed(fields: Mapping[str, Value]) -> Trial:
        counts: dict[str, int] = {}
        for wanted, brings in better:
            if wanted.items() <= fields.items():
                counts |= brings
        return _changed(fields, **counts)

    return replayed


@pytest.mark.parametrize(
    ("better", "expected"),
    [
        ([], None),
        ([({_KV: _ACTION}, {"failed": 0})], {_KV: _ACTION}),
        # A deadline is worth it only where what it cuts is recomputed.
        (
            [
                ({"deferral.maxTransferWait": timedelta(seconds=4)}, {"failed": 30, "waited_ns": 0}),
                (
                    {_KV: _ACTION, "deferral.maxTransferWait": timedelta(seconds=4)},
                    {"failed": 0, "waited_ns": 0},
                ),
            ],
            {
                _KV: _ACTION,
                "deferral.maxTransferWait": timedelta(seconds=4),
                "deferral.onTimeout": "recompute",
            },
        ),
        (
            [({"peerQuarantine.failures": 3}, {"failed": 1})],
            {
                "peerQuarantine.failures": 3,
                "peerQuarantine.window": timedelta(seconds=30),
                "peerQuarantine.duration": timedelta(minutes=1),
            },
        ),
    ],
)
def test_the_best_of_a_table(
    better: list[tuple[dict[str, Any], dict[str, int]]], expected: dict[str, Value] | None
) -> None:
    """Fields are added one group after the other, and kept only where they bring something."""
    if len(better) == 2:
        better = [({_KV: _ACTION}, {"failed": 0}), *better]
    found = search(_TODAY, Seen(transfer_waits_ns=(2 * _SECOND,)), _table(*better))
    assert (None if found.best is None else found.best.fields) == expected
    assert found.complete


def test_nothing_is_tried_where_nothing_was_lost() -> None:
    """No failure, and less than a second of waits."""
    today = Trial({}, Counts(loads=100, loaded=100, waited_ns=_SECOND - 1))
    found = search(today, Seen(), lambda _: pytest.fail("it was replayed"))
    assert (found.best, found.trials, found.complete) == (None, (), True)


def test_the_search_ends_when_it_is_told() -> None:
    """What was found until then holds, and it says that it is not complete."""
    told = iter([_changed({_KV: _ACTION}, failed=0)])
    found = search(_TODAY, Seen(), lambda _: next(told, None))
    assert found.best is not None
    assert (found.best.fields, found.complete) == ({_KV: _ACTION}, False)


@pytest.mark.parametrize(
    ("waits", "bounds"),
    [
        ((), (30.0, 5.0)),
        ((10 * _MILLISECOND,), (1.0,)),
        ((2340 * _MILLISECOND,), (4.7, 2.4)),
        ((*[_SECOND] * 99, 60 * _SECOND), (120.0, 60.0, 1.0)),
        ((2**63,), (3600.0,)),
    ],
)
def test_limits_are_those_that_loads_keep(waits: tuple[int, ...], bounds: tuple[float, ...]) -> None:
    """Two digits, a second at least, an hour at most."""
    assert tuple(each.total_seconds() for each in wait_bounds(waits)) == bounds
