"""How fast clients may go: one by its rate, all together by what is in hand."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


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


class Hand:
    """What is worked on at a time, in bytes; who comes when it is full waits, and goes in the order of coming.

    One that is larger than all of it goes alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._door = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold *size* bytes."""
        async with self._door:
            while self._held and self._held + size > self._size:
                self._freed.clear()
                await self._freed.wait()
            self._held += size
        try:
            yield
        finally:
            self._held -= size
            self._freed.set()
