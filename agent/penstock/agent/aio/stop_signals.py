"""SIGTERM and SIGINT as one event, from the first of them to the last moment of the process."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


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
