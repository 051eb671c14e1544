"""The order that takes this server out of rotation: one for a time, which ends by itself unless it is renewed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST: Final = 60.0
"""Seconds for which one order can hold; what asks for more holds for so long."""


class Rotation:
    """Whether an order keeps this server out of rotation. Without a lock: an order is one number, replaced at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without an order; *clock* counts seconds and never goes back."""
        self._clock = clock
        self._until = clock()

    def out_for(self, seconds: float) -> None:
        """Take the server out from now on for *seconds*, at most :data:`LONGEST`; replaces the order before, 0 ends it."""
        self._until = self._clock() + min(max(seconds, 0.0), LONGEST)

    def end(self) -> None:
        """End the order, if there is one."""
        self.out_for(0.0)

    def seconds_over(self) -> float:
        """Return for how many seconds the last order has ended; 0 while it holds."""
        return max(0.0, self._clock() - self._until)

    def seconds_left(self) -> float:
        """Return for how many seconds the order still holds; 0 without one."""
        return max(0.0, self._until - self._clock())
