"""The event loop of all streams of this process, on a thread of its own.

grpc's poller waits in the core without a time-out, and the loop waits for the poller: where the synchronous API wakes
its threads ten times a second, these sleep until there is something to do (decision 49).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.instrumentation.core import STREAMS_THREAD, guard

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_BEGIN_WITHIN: Final = 5.0


class StreamLoopError(RuntimeError):
    """grpc's asyncio part cannot be used in this process any more."""


class _Loop(asyncio.SelectorEventLoop):
    """A loop that its destructor does not close.

    In a child of a fork that would take the parent's loop off the epoll instance that both have.
    """

    def __del__(self) -> None:
        """Do nothing."""


class StreamLoop:
    """One loop and its thread, for all that have acquired it; it ends when the last has released it.

    Attributes:
        users: how many have acquired it and not released it.

    """

    _lock = threading.Lock()
    _current: StreamLoop | None = None
    # To begin again after a failure makes grpc dereference a null pointer.
    _broken = False

    def __init__(self) -> None:
        """Start the thread, and wait until grpc's poller runs; :meth:`acquire` calls this.

        Raises:
            StreamLoopError: grpc's poller does not run.
            RuntimeError: the system has no thread left.

        """
        self._loop = _Loop()
        self._loop.set_exception_handler(_record)
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.users = 0
        self._unused = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name=STREAMS_THREAD, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise
        if not self._begun.wait(_BEGIN_WITHIN) or self._failure is not None:
            StreamLoop._broken = True
            raise StreamLoopError("grpc's poller did not begin") from self._failure

    @classmethod
    def acquire(cls) -> StreamLoop:
        """Return the loop of this process, which is begun if there is none; the caller releases it.

        Raises:
            StreamLoopError: grpc's asyncio part has failed to begin, now or before.
            RuntimeError: the system has no thread left.

        """
        with cls._lock:
            if cls._broken:
                raise StreamLoopError("grpc's poller did not begin")
            if cls._current is None or not cls._current.alive:
                cls._current = cls()
            cls._current.users += 1
            return cls._current

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def release(self, wait: float) -> None:
        """Let the loop end when what runs on it has ended, if no other has acquired it; wait at most so many seconds."""
        with self._lock:
            self.users -= 1
            if self.users:
                return
            if StreamLoop._current is self:
                StreamLoop._current = None
        self.call_soon(self._unused.set)
        self._thread.join(wait)

    def run(self, coroutine: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run *coroutine* on the loop; does not wait for it. From any thread.

        Raises RuntimeError if the loop has ended.
        """
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call *function* on the loop's thread, unless the loop has ended. From any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(function)

    def _begin(self, coroutine: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(coroutine())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001  (the next stream begins another loop)
            guard.record("streams", error)
            self._loop.run_until_complete(self._cancel_tasks())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            grpc.aio.init_grpc_aio()
        except BaseException as error:  # noqa: BLE001  (raised on the thread that waits)
            self._failure = error
            return
        finally:
            self._begun.set()
        await self._unused.wait()
        await self._end_tasks()
        # With the last channel, which is gone by now, grpc's poller ends.
        grpc.aio.shutdown_grpc_aio()

    async def _cancel_tasks(self) -> None:
        await asyncio.sleep(0)  # one that has not begun would end without a word
        for task in self._tasks:
            task.cancel()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


def _record(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    guard.record("streams", context.get("exception") or RuntimeError(str(context.get("message"))))
