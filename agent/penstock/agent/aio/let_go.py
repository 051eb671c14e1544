"""Lets other threads run on time while one of them computes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# A thread that waits for the interpreter waits for the switch interval, at each of its steps; one that sleeps gives the
# interpreter away at once. So a step of an acknowledgement beside a long computation takes no longer than this.
_COMPUTED_SECONDS: Final = 0.000_2
_SLEPT_SECONDS: Final = 0.000_02


class LetGo:
    """Called between the pieces of a long computation, on a thread of its own: it sleeps if the last sleep was long ago."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._since = clock()

    def __call__(self) -> None:
        """Let other threads run if this one has computed for a fifth of a millisecond."""
        if self._clock() - self._since >= _COMPUTED_SECONDS:
            self._sleep(_SLEPT_SECONDS)
            self._since = self._clock()
