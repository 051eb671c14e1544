"""Threads beside the loop: a blocking call on one that cannot delay exit, and a long computation that lets others run on time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# A thread that waits for the interpreter waits for the switch interval, at each of its steps; one that sleeps gives the
# interpreter away at once. So a step of an acknowledgement beside a long computation takes no longer than this.
_COMPUTED_SECONDS: Final = 0.000_2
_SLEPT_SECONDS: Final = 0.000_02


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


class ThreadYield:
    """Called between the pieces of a long computation, on a thread of its own: it sleeps if the last sleep was long ago."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._since = clock()

    def __call__(self) -> None:
        """Let other threads run if this one has computed for a fifth of a millisecond."""
        if self._clock() - self._since >= _COMPUTED_SECONDS:
            self._sleep(_SLEPT_SECONDS)
            self._since = self._clock()
