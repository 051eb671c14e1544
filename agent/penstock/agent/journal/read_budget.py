"""How much of the log one question may read, and for how long."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_BYTES = 64 << 20

STEP_SECONDS = 2.0
"""Of a step of a question. Bytes alone bound no time: what is done with an entry of 30 bytes takes as long as with one of a kilobyte."""


class ReadBudget:
    """Bytes of batches, and time; the batch that goes beyond them is read, none after it.

    Args:
        size: bytes.
        seconds: from now on.
        clock: monotonic seconds.

    Attributes:
        cut: there was more to read.

    """

    def __init__(
        self,
        size: int = DEFAULT_BYTES,
        seconds: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = size
        self._clock = clock
        self._end = clock() + seconds
        self.cut = False

    def consume(self, size: int) -> None:
        """Note that a batch of *size* bytes was read."""
        self._left -= size

    @property
    def ends(self) -> bool:
        """Whether nothing more may be read; to be asked when there is more."""
        self.cut = self.cut or self._left <= 0 or self._clock() >= self._end
        return self.cut
