"""Waiting times before the next attempt to connect."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

INITIAL: Final = 0.1
MAXIMUM: Final = 5.0


class Backoff:
    """Exponential with jitter: between half and all of 0.1, 0.2, 0.4 ... 5 seconds."""

    def __init__(self, spread: Callable[[], float] = random.random) -> None:
        """Start at the shortest; *spread* returns the jitter, in [0, 1)."""
        self._spread = spread
        self._ceiling = INITIAL

    def next(self) -> float:
        """Return the seconds to wait, and wait longer next time."""
        wait = self._ceiling * (0.5 + 0.5 * self._spread())
        self._ceiling = min(self._ceiling * 2, MAXIMUM)
        return wait

    def longest(self) -> float:
        """Return the longest wait: for an error that another attempt will not change soon."""
        self._ceiling = MAXIMUM
        return self.next()

    def reset(self) -> None:
        """Start again at the shortest, after an attempt that succeeded."""
        self._ceiling = INITIAL
