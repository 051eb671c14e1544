"""Fault drills of the reads of an ``ECCPUConnector``: what they hit fails before it begins, or begins late."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import SLOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.resilience import Drill

CAPACITY: Final = 4096
"""Attempts that are remembered; beyond it the oldest is drawn anew."""


class RehearsedError(Exception):
    """A fault drill makes a read fail."""


class ReadRehearsal:
    """The drills of one consumer, on its scheduler's thread. vLLM may ask for the same attempt many times; it is drawn once.

    Attributes:
        hit: returns the drill that hits an attempt, by mode and address; None until it is known.

    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Use *clock*, monotonic nanoseconds."""
        self.hit: Callable[[int, str], Drill | None] | None = None
        self._clock = clock
        # Until when an attempt is late; 0 if it is not.
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def failing(self, item: str, address: str) -> Drill | None:
        """Return the drill by which this attempt to get *item* is to fail; draws, if that has not been done."""
        if self.hit is None or item in self._attempts:
            return None
        drill = self.hit(c.FAILURE_MODE_PROBE, address) or self.hit(c.FAILURE_MODE_TRANSFER, address)
        if drill is None:
            slow = self.hit(SLOW, address)
            self._attempts[item] = 0 if slow is None else self._clock() + slow.delay_ns
            if len(self._attempts) > CAPACITY:
                self._attempts.popitem(last=False)
        return drill

    def is_held(self, item: str) -> bool:
        """Return whether the attempt is not to begin yet."""
        return self._clock() < self._attempts.get(item, 0)

    def made_late(self, item: str) -> bool:
        """Return whether a drill has made the attempt late."""
        return self._attempts.get(item, 0) > 0

    def end(self, item: str) -> None:
        """Forget an attempt: the next one is drawn anew."""
        self._attempts.pop(item, None)
