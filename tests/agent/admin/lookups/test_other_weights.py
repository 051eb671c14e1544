"""What is remembered of engines that had loaded other weights."""

from __future__ import annotations

import pytest
from penstock.agent.admin.lookups import DifferentWeights, Place, WeightsMemory
from penstock.agent.model import EngineKey

_PLACE = (EngineKey("decode", "0"), "10.0.0.7:5600")


def _differ(since: int, *processes: int) -> DifferentWeights:
    return DifferentWeights(since, EngineKey("prefill", "0"), "it read", processes)


def _ended(memory: WeightsMemory) -> list[tuple[Place, int]]:
    return [(place, each.until) for place, each in memory.ended]


@pytest.mark.parametrize(
    ("moment", "inside"), [(4, False), (5, True), (9, True), (10, False), (11, False)], ids=str
)
def test_a_time_that_is_over(moment: int, inside: bool) -> None:
    """It has both ends: its first moment is in it, its last is not."""
    over = DifferentWeights(5, EngineKey("prefill", "0"), "it read", (1, 2), 10)
    assert over.includes(moment) == inside


def test_one_that_is_gone_is_kept_and_one_that_comes_back_lasts() -> None:
    """A peer that was not seen for a moment has not ended; another process in its place has."""
    memory = WeightsMemory()
    found = {_PLACE: _differ(5, 1, 2)}
    assert memory.update(found, lambda *_: 0)
    assert _ended(memory) == []
    assert memory.update({}, lambda *_: 10)
    assert _ended(memory) == [(_PLACE, 10)]
    memory.update(found, lambda *_: 0)
    assert _ended(memory) == []
    other = {_PLACE: _differ(20, 1, 3)}
    memory.update(other, lambda *_: 15)
    assert _ended(memory) == [(_PLACE, 15)]


def test_it_is_bounded() -> None:
    """What ended first is forgotten."""
    memory = WeightsMemory()
    for number in range(1_100):
        memory.update({_PLACE: _differ(number, number)}, lambda _, each: each.since + 1)
    memory.update({}, lambda *_: 5_000)
    assert len(memory.ended) == 1_024
    assert memory.ended[-1][1].until == 5_000
