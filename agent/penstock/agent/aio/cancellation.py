"""Whether a task is cancelled, though a library has swallowed the CancelledError."""

from __future__ import annotations

import asyncio


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
