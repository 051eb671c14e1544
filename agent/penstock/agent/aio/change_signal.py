"""Change notification on one loop: by callback, or by waiting with a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Listeners:
    """Callbacks, called in the order in which they were added."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Add a callback; return its removal."""
        number = self._next
        self._next += 1
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None

    def call(self) -> None:
        """Call them all; they must not raise."""
        for callback in list(self._callbacks.values()):
            callback()


class ChangeSignal:
    """A version number to wait on. A waiter sees the newest version, not every one.

    A wait is a future and a timer, no task: each engine's stream waits here, and all of them wake up at once.
    """

    def __init__(self) -> None:
        self.version = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of waiters."""
        return len(self._waiters)

    def notify(self) -> None:
        """Move the version and wake all waiters."""
        self.version += 1
        for waiter in self._waiters:
            _wake(waiter)

    async def wait(self, seen: int, seconds: float) -> int:
        """Return the version once it differs from *seen*, or after *seconds*."""
        if self.version == seen:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(max(seconds, 0.0), _wake, waiter)
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                timer.cancel()
        return self.version


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
