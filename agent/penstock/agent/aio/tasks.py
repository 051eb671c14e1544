"""Runs a coroutine to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end even if the caller is cancelled meanwhile; then the caller ends.

    So a caller that hangs up in the middle of a commit can part neither the
    database from the memory nor the lock from what it guards. An error of the
    agent's own kinds is for the caller, and lost with it; any other is a bug,
    and asyncio logs it.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # It may be cancelled again before that.
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        _forget(task)
        raise


def _forget(task: asyncio.Task[Any]) -> None:
    """Take the error of a task that nobody asks for any more, so that asyncio does not miss it."""
    if not task.cancelled() and not isinstance(error := task.exception(), PenstockError | None):
        task.get_loop().call_exception_handler(
            {"message": "what went on after its caller had gone has failed", "exception": error, "task": task}
        )
