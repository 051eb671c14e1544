"""Waiting for a version to move."""

from __future__ import annotations

import asyncio

from penstock.agent.aio import ChangeSignal

FAR = 60.0


async def test_a_version_that_has_moved_is_not_waited_for() -> None:
    """A waiter that has seen an older value gets the newest at once."""
    notice = ChangeSignal()
    notice.notify()
    notice.notify()
    assert await notice.wait(0, FAR) == 2
    assert notice.waiting == 0


async def test_all_waiters_wake_up() -> None:
    """Each with the newest version, also if it moves twice before they have their turn."""
    notice = ChangeSignal()
    waits = [asyncio.ensure_future(notice.wait(0, FAR)) for _ in range(3)]
    await asyncio.sleep(0)
    assert notice.waiting == 3
    notice.notify()
    notice.notify()
    assert await asyncio.gather(*waits) == [2, 2, 2]
    assert notice.waiting == 0


async def test_a_wait_ends_at_its_deadline_or_with_its_task() -> None:
    """Neither leaves anything behind that a later notice would stumble over."""
    notice = ChangeSignal()
    assert await notice.wait(0, 0.001) == 0
    waiting = asyncio.ensure_future(notice.wait(0, FAR))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (waiting.cancelled(), notice.waiting) == (True, 0)
    notice.notify()
    assert notice.version == 1
