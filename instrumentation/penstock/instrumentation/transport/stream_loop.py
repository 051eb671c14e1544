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

_BEGIN_WITHIN: Final = 1.0
# For what is open when the loop ends: streams that were closed, and then operations that grpc's core has not failed yet.
_END_WITHIN: Final = 5.0
_CORE_WITHIN: Final = 0.25
# A cause that ends the loop may end its end, too.
_END_TRIES: Final = 3


class StreamLoopError(RuntimeError):
    """grpc's asyncio part cannot be used in this process, now or any more."""


class LoopEndedError(StreamLoopError):
    """The loop has ended since it was acquired."""


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
    # One that has not begun in time, and may still be at it.
    _late: StreamLoop | None = None

    def __init__(self) -> None:
        """Start the thread, and wait until grpc's poller runs; :meth:`acquire` calls this.

        Raises:
            StreamLoopError: grpc's poller does not run.
            RuntimeError: the system has no thread left.

        """
        self._loop = _Loop()
        self._loop.set_exception_handler(_record)
        self._begun = threading.Event()
        self._initialized = False
        # Held while work is given to the loop, so that none comes after its end.
        self._giving = threading.Lock()
        self._over = False
        self._tasks: set[asyncio.Task[None]] = set()
        # What is called of each that was taken and has not ended.
        self._unended: set[Callable[[], None]] = set()
        self.users = 0
        self._unused = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name=STREAMS_THREAD, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise
        if not self._begun.wait(_BEGIN_WITHIN) or not self._initialized:
            # A late one ends at once.
            self.call_soon(self._unused.set)
            StreamLoop._late = self
            raise StreamLoopError("grpc's poller did not begin")

    @classmethod
    def acquire(cls) -> StreamLoop:
        """Return the loop of this process, which is begun if there is none; the caller releases it.

        Raises:
            StreamLoopError: grpc's asyncio part has failed to begin, now or before.
            RuntimeError: the system has no thread left.

        """
        with cls._lock:
            if cls._broken or (cls._late is not None and cls._late.running):
                raise StreamLoopError("grpc's poller did not begin")
            if cls._current is None or not cls._current.alive:
                cls._current = cls()
            cls._current.users += 1
            return cls._current

    @property
    def running(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether it takes streams."""
        return not self._over and self.running

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

    def run(self, coroutine: Callable[[], Coroutine[Any, Any, None]], lost: Callable[[], None]) -> None:
        """Run *coroutine* on the loop; does not wait for it. From any thread.

        Args:
            coroutine: it is cancelled if the loop ends before it has ended itself.
            lost: called on the loop's thread if that was not possible either; must not raise.

        Raises:
            LoopEndedError: the loop has ended.

        """
        with self._giving:
            if self._over:
                raise LoopEndedError("the loop of all streams has ended")
            self._unended.add(lost)
            self._loop.call_soon_threadsafe(self._begin, coroutine, lost)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call *function* on the loop's thread, unless the loop has ended. From any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(function)

    def _begin(self, coroutine: Callable[[], Coroutine[Any, Any, None]], lost: Callable[[], None]) -> None:
        task = self._loop.create_task(coroutine())
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._unended.discard(lost)

        task.add_done_callback(end)

    def _live(self) -> None:
        serving = self._loop.create_task(self._serve())
        died = not self._run_contained(serving)
        with self._giving:
            self._over = True
        for _ in range(_END_TRIES):
            serving.cancel()
            if self._run_contained(self._loop.create_task(self._end(died=died))):
                break
            died = True
        for lost in tuple(self._unended):
            lost()
        with guard("streams"):
            if self._initialized:
                # With the last channel, which is gone by now, grpc's poller ends.
                grpc.aio.shutdown_grpc_aio()
        self._loop.close()

    def _run_contained(self, task: asyncio.Task[None]) -> bool:
        """Run the loop until *task* has ended; return whether the loop, or the task, did not fail."""
        try:
            self._loop.run_until_complete(task)
        except BaseException as error:  # noqa: BLE001  (the next stream begins another loop)
            guard.record("streams", error)
            return False
        return True

    async def _serve(self) -> None:
        try:
            grpc.aio.init_grpc_aio()
            self._initialized = True
        except BaseException as error:  # noqa: BLE001  (each stream has threads of its own from now on)
            guard.record("streams", error)
            StreamLoop._broken = True
            return
        finally:
            self._begun.set()
        await self._unused.wait()

    async def _end(self, *, died: bool) -> None:
        """End what runs on the loop."""
        if not died:
            await self._wait(_END_WITHIN)
        await asyncio.sleep(0)  # one that has not begun would end without a word
        for task in self._tasks:
            task.cancel()
        await self._wait(_END_WITHIN)
        # What the core has yet to fail it would give to a loop that is closed: another loop of this process, perhaps
        # the host's, then raises that.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_CORE_WITHIN)

    async def _wait(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)


def _record(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception") or RuntimeError(str(context.get("message")))
    # grpc had an answer for another loop, of the host's, which was closed amid a call.
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        guard.record("streams", error)
