"""Collects what a follower of objects hands over."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from penstock.agent.policy.kubernetes import ObjectFollower, ObjectSet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.agent.policy.kubernetes import ClusterAccess

WAIT_SECONDS = 60.0


class CollectingSink:
    """A sink whose sets and states a test waits for.

    Attributes:
        again: the seconds that the next hand-over returns, once.

    """

    def __init__(self) -> None:
        self.sets: list[ObjectSet] = []
        self.error: str | None = None
        self.errors: list[str] = []
        self.again = 0.0
        self._changed = asyncio.Condition()

    def connected(self) -> None:
        """Note it."""
        self.error = None
        self._notify()

    def away(self, error: str) -> None:
        """Note it."""
        self.error = error
        self.errors.append(error)
        self._notify()

    async def hand_over(self, found: ObjectSet) -> float:
        """Keep the set."""
        self.sets.append(found)
        self._notify()
        again, self.again = self.again, 0.0
        return again

    @property
    def actions(self) -> dict[str, str]:
        """The action of each policy of the last set."""
        last = self.sets[-1].objects if self.sets else {}
        return {name: each.manifest["spec"]["kvLoadFailure"]["action"] for name, each in last.items()}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for *condition*."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                async with self._changed:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 0.2)

    def _notify(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._task = asyncio.ensure_future(tell())


@asynccontextmanager
async def following(access: ClusterAccess) -> AsyncIterator[CollectingSink]:
    """Follow the objects into a sink."""
    sink = CollectingSink()
    task = asyncio.ensure_future(ObjectFollower(access).run(sink))
    try:
        yield sink
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
