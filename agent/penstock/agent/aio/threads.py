"""Runs a blocking call on a daemon thread, so that a hung filesystem cannot delay exit."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def run_on_daemon_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Return what *work* returns, or raise what it raises.

    Unlike asyncio's own threads, which are joined before the process ends, this one dies with it.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001  (it is raised where it is waited for)
            done.set_exception(error)

    threading.Thread(target=run, name="penstock-files", daemon=True).start()
    return await asyncio.wrap_future(done)
