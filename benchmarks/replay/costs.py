"""What Penstock adds to a step, a request and a transfer, from what the plays of all scenarios have counted.

Pure.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STEPS_SHOWN: Final = (2, 10, 30)
"""Milliseconds of a step of which the added share is shown."""
_US: Final = 1e3


@dataclass(frozen=True, slots=True)
class Play:
    """One play: what it was, and what was counted in it by a step.

    Attributes:
        steps, requests, transfers, entries: of the play.
        counted: of the whole play.

    """

    steps: int
    requests: int
    transfers: int
    entries: int
    counted: float

    @property
    def by_step(self) -> float:
        """What was counted, by a step."""
        return self.counted / self.steps


@dataclass(frozen=True, slots=True)
class Added:
    """What the plays with Penstock have counted more than those without, in the middle."""

    play: Play
    total: float

    @property
    def by_step(self) -> float:
        """What is added to a step."""
        return self.total / self.play.steps


@dataclass(frozen=True, slots=True)
class Parts:
    """What is added to a step in which nothing happens, by a request, and by a transfer of each scenario that has them."""

    step: float
    request: float
    transfer: Mapping[str, float]


def added(ours: Iterable[Play], theirs: Iterable[Play]) -> Added:
    """Return what is added, of the medians.

    Raises:
        ValueError: the plays are not of the same steps and requests.

    """
    ours, theirs = list(ours), list(theirs)
    kinds = {(each.steps, each.requests, each.transfers) for each in (*ours, *theirs)}
    if len(kinds) != 1:
        raise ValueError(f"The plays differ in steps, requests and transfers: {sorted(kinds)}")
    middle = [statistics.median(each.counted for each in plays) for plays in (ours, theirs)]
    return Added(ours[0], middle[0] - middle[1])


def parts(found: Mapping[str, Added], *, idle: str, requests: str, transfers: Iterable[str]) -> Parts:
    """Return the parts by difference: what is left without a step's part is the requests', without theirs the transfers'."""
    step = found[idle].by_step
    short = found[requests]
    request = (short.total - step * short.play.steps) / short.play.requests
    by_transfer = {}
    for name in transfers:
        play = found[name].play
        rest = found[name].total - step * play.steps - request * play.requests
        by_transfer[name] = rest / play.transfers
    return Parts(step, request, by_transfer)


def share(added_us: float, step_ms: float) -> float:
    """Return the per cent of a step of *step_ms* that is added to it."""
    return 100 * added_us / (step_ms * _US)


def throughput(added_us: float, step_ms: float) -> float:
    """Return the throughput with what is added to each step, by that without it."""
    return step_ms * _US / (step_ms * _US + added_us)
