"""How fast one client may go. Pure but for the clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Bucket:
    """A token bucket: *rate* a second in the long run, up to *burst* at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock()

    def try_take(self, amount: float) -> bool:
        """Take *amount* if it is there; tell whether it was."""
        self._refill()
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def owe(self, amount: float) -> float:
        """Take *amount* in any case; returns the seconds until the bucket has made up for it, 0 if it was there."""
        self._refill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
