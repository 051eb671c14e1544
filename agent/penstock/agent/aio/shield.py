"""Runs a coroutine to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

T = TypeVar("T")


async def to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end even if the caller is cancelled meanwhile; then the caller ends.

    So a caller that hangs up in the middle of a commit can part neither the
    database from the memory nor the lock from what it guards.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # It may be cancelled again before that.
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
