"""The budget of one query: bytes of the log, and time."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_BYTES = 64 << 20

STEP_SECONDS = 2.0
"""Time of one step of a query. Bytes alone do not bound it: an entry of 30 bytes takes as long as one of a kilobyte."""

_UNTIMED_BYTES = 1 << 20


class ReadBudget:
    """Bytes of batches, and time. The batch that exceeds it is read, none after it.

    Args:
        size: bytes.
        seconds: from now on; they end no query that has read less than *untimed*.
        clock: monotonic seconds.
        untimed: bytes. A process that had no turn for a while has used its time and read nothing.

    Attributes:
        cut: there was more to read.

    """

    def __init__(
        self,
        size: int = DEFAULT_BYTES,
        seconds: float = inf,
        clock: Callable[[], float] = time.monotonic,
        untimed: int = _UNTIMED_BYTES,
    ) -> None:
        self._left = size
        self._timed = size - untimed
        self._clock = clock
        self._end = clock() + seconds
        self.cut = False

    def consume(self, size: int) -> None:
        """Count a batch of *size* bytes that was read."""
        self._left -= size

    @property
    def ends(self) -> bool:
        """Whether the budget is used up; asked only when there is more to read."""
        late = self._left <= self._timed and self._clock() >= self._end
        self.cut = self.cut or self._left <= 0 or late
        return self.cut
