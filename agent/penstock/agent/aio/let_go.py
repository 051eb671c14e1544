"""Lets other threads run on time while one of them computes."""

from __future__ import annotations

import time
from typing import Final

# The interpreter makes a thread that waits for it wait for the switch interval, at each of its steps; who sleeps gives it
# away at once. So a step of an acknowledgement beside a long computation takes no longer than this.
_COMPUTED_SECONDS: Final = 0.000_2
_SLEPT_SECONDS: Final = 0.000_02


class LetGo:
    """Called between the pieces of a long computation on a thread of its own; sleeps when the last time is long ago."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Let other threads run if this one has computed for a fifth of a millisecond. Never on the loop's thread."""
        if time.perf_counter() - self._since >= _COMPUTED_SECONDS:
            time.sleep(_SLEPT_SECONDS)
            self._since = time.perf_counter()
