"""Items whose load has failed: they are not loaded again for a minute."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.vllm.requests import Cause

REMEMBERED_NS: Final = 60_000_000_000
CAPACITY: Final = 4096
"""Items that are remembered; beyond it the oldest is forgotten."""


class BadItems:
    """The bad items of one scheduler and why; on its thread.

    Attributes:
        table: until when, and why, by item; what is bad no longer may still be in it.

    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start with none; *clock* is monotonic nanoseconds."""
        self._clock = clock
        self.table: OrderedDict[str, tuple[int, Cause]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.table)

    def __contains__(self, item: str) -> bool:
        return self.cause(item) is not None

    def remember(self, item: str, cause: Cause) -> None:
        """Record that *item* is bad from now on."""
        self.table[item] = (self._clock() + REMEMBERED_NS, cause)
        self.table.move_to_end(item)
        if len(self.table) > CAPACITY:
            self.table.popitem(last=False)

    def forget(self, item: str) -> None:
        """Record that *item* is bad no longer."""
        self.table.pop(item, None)

    def prune(self) -> None:
        """Forget what is bad no longer; the oldest is first."""
        now = self._clock()
        while self.table and next(iter(self.table.values()))[0] <= now:
            self.table.popitem(last=False)

    def cause(self, item: str) -> Cause | None:
        """Return why *item* is bad; None if it is not, or no longer."""
        found = self.table.get(item)
        if found is None:
            return None
        until_ns, cause = found
        if self._clock() < until_ns:
            return cause
        del self.table[item]
        return None
