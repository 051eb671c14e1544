"""How tasks end: whether one is cancelled, one that runs to its end although its caller is cancelled, and the signals that end the process."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

T = TypeVar("T")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


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


def is_cancelled() -> bool:
    """Return whether the present task is cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_if_cancelled() -> None:
    """Go on with the cancellation of the present task.

    Raises:
        CancelledError: it is cancelled.

    """
    if is_cancelled():
        raise asyncio.CancelledError


def stop_event() -> asyncio.Event:
    """Return an event of the running loop that the first SIGTERM or SIGINT sets. Call it on the main thread.

    Later ones are ignored until the process has ended. ``loop.add_signal_handler`` does less: closing the loop and the end
    of the interpreter both restore the default action, so that a second SIGTERM turns a clean end into exit status 143.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # Only handlers written in Python are reset when the interpreter ends; SIG_IGN stays.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    return stop
