"""The event loop of all streams of this process, on one thread that lives as long as one of them.

grpc's poller waits in the core without a time-out, and the loop waits for the poller: where the synchronous API wakes
its threads ten times a second, these sleep until there is something to do (decision 49).
"""

from __future__ import annotations

import asyncio
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
    """One loop and its thread. It begins with a first coroutine, and ends when the last has ended."""

    _lock = threading.Lock()
    _current: StreamLoop | None = None
    # To begin again after a failure makes grpc dereference a null pointer.
    _broken = False

    def __init__(self) -> None:
        """Start the thread, and wait until grpc's poller runs; :meth:`run` calls this.

        Raises:
            StreamLoopError: grpc's poller does not run.
            RuntimeError: the system has no thread left.

        """
        self._loop = _Loop()
        self._loop.set_exception_handler(_record)
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._users = 0
        self._unused = asyncio.Event()
        thread = threading.Thread(target=self._live, name=STREAMS_THREAD, daemon=True)
        try:
            thread.start()
        except BaseException:
            self._loop.close()
            raise
        if not self._begun.wait(_BEGIN_WITHIN) or self._failure is not None:
            StreamLoop._broken = True
            raise StreamLoopError("grpc's poller did not begin") from self._failure

    @classmethod
    def run(cls, coroutine: Callable[[], Coroutine[Any, Any, None]]) -> StreamLoop:
        """Run *coroutine* on the loop of this process, which is begun if there is none; does not wait for its end.

        Raises:
            StreamLoopError: grpc's asyncio part has failed to begin, now or before.
            RuntimeError: the system has no thread left.

        """
        with cls._lock:
            if cls._broken:
                raise StreamLoopError("grpc's poller did not begin")
            loop = cls._current
            if loop is None:
                loop = cls._current = cls()
            loop._users += 1
        loop.call_soon(lambda: loop._begin(coroutine))
        return loop

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call *function* on the loop's thread, unless the loop has ended. From any thread."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # it has ended
            return

    def _begin(self, coroutine: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(coroutine())
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with self._lock:
            self._users -= 1
            if self._users:
                return
            StreamLoop._current = None
        self._unused.set()

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001  (the next stream begins another loop)
            guard.record("streams", error)
        finally:
            with self._lock:
                if StreamLoop._current is self:
                    StreamLoop._current = None
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
        # With the last channel, which is gone by now, grpc's poller ends.
        grpc.aio.shutdown_grpc_aio()


def _record(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    guard.record("streams", context.get("exception") or RuntimeError(str(context.get("message"))))
