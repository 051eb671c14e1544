"""Limits of clients: a rate for each, and bytes in processing for all."""

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
        """Whether the whole burst is available."""
        self._refill()
        return self._level >= self._burst

    def try_take(self, amount: float) -> bool:
        """Consume *amount* if it is available; return whether it was."""
        self._refill()
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def debt(self, amount: float) -> float:
        """Consume *amount* in any case; return the seconds until the bucket is out of debt, 0 if it is not in debt."""
        self._refill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now


class ByteSemaphore:
    """Bytes that are processed at a time; callers beyond that wait, first come, first served.

    A reservation larger than *size* proceeds alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_use = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    def reserve(self, size: int) -> _Reservation:
        """Return a context that holds *size* bytes: ``async with semaphore.reserve(size)``."""
        return _Reservation(self, size)

    async def acquire(self, size: int) -> None:
        """Wait until *size* bytes are free, and acquire them."""
        if not self._turn.locked() and self._fits(size):
            # No waiters: without yielding to the loop.
            self._in_use += size
            return
        async with self._turn:
            while not self._fits(size):
                self._freed.clear()
                await self._freed.wait()
            self._in_use += size

    def _fits(self, size: int) -> bool:
        return not self._in_use or self._in_use + size <= self._size

    def release(self, size: int) -> None:
        """Release bytes that were acquired."""
        self._in_use -= size
        self._freed.set()


class _Reservation:
    """The context of :meth:`ByteSemaphore.reserve`: contextlib takes several times as long, once a message."""

    __slots__ = ("_semaphore", "_size")

    def __init__(self, semaphore: ByteSemaphore, size: int) -> None:
        self._semaphore = semaphore
        self._size = size

    async def __aenter__(self) -> None:
        await self._semaphore.acquire(self._size)

    async def __aexit__(self, *_: object) -> None:
        self._semaphore.release(self._size)
