"""How fast clients may go: one by its rate, all together by what is in hand."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """A token bucket: *rate* a second in the long run, up to *burst* at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock()

    @property
    def full(self) -> bool:
        """Whether all of the burst is there."""
        self._refill()
        return self._level >= self._burst

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


class ByteSemaphore:
    """What is worked on at a time, in bytes; who comes when it is full waits, and goes in the order of coming.

    One that is larger than all of it goes alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._door = asyncio.Lock()
        self._freed = asyncio.Event()

    def hold(self, size: int) -> _Hold:
        """Hold *size* bytes: ``async with hand.hold(size)``."""
        return _Hold(self, size)

    async def take(self, size: int) -> None:
        """Wait until *size* bytes are free, and take them."""
        if not self._door.locked() and self._fits(size):
            # Without a turn of the loop: nobody waits.
            self._held += size
            return
        async with self._door:
            while not self._fits(size):
                self._freed.clear()
                await self._freed.wait()
            self._held += size

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._size

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._held -= size
        self._freed.set()


class _Hold:
    """A context manager; contextlib's takes several times as long, and each message needs one."""

    __slots__ = ("_hand", "_size")

    def __init__(self, hand: ByteSemaphore, size: int) -> None:
        self._hand = hand
        self._size = size

    async def __aenter__(self) -> None:
        await self._hand.take(self._size)

    async def __aexit__(self, *_: object) -> None:
        self._hand.give(self._size)
