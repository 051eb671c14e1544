"""Runs subjects in turns, in a new random order each round; timing helpers."""

from __future__ import annotations

import gc
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """The options of a measurement.

    Attributes:
        say: shows progress.
        quick: for ``make bench-quick``: ratios only, in seconds, with no engine.

    """

    say: Callable[[str], None]
    quick: bool = False


def take_turns(
    subjects: Mapping[str, Callable[[], T]],
    rounds: int,
    say: Callable[[str], None] = lambda _: None,
    seed: int = 0,
) -> dict[str, list[T]]:
    """Call each of *subjects* once a round, in a random order from *seed*; return each one's result of each round."""
    order = random.Random(seed)
    found: dict[str, list[T]] = {name: [] for name in subjects}
    tenth = max(1, rounds // 10)
    for number in range(rounds):
        if number % tenth == 0:
            say(f"round {number + 1} of {rounds}")
        for name in order.sample(list(subjects), len(subjects)):
            found[name].append(subjects[name]())
    return found


@contextmanager
def without_gc() -> Iterator[None]:
    """Disable the garbage collector, after one collection."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
