"""Small tools for the loop, and for threads beside it, that the standard library lacks."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType


class Listeners:
    """Callbacks, called in the order in which they were added."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Add a callback; return its removal."""
        number = self._next
        self._next += 1
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None

    def call(self) -> None:
        """Call them all; they must not raise."""
        for callback in list(self._callbacks.values()):
            callback()


class ChangeSignal:
    """A version number to wait on. A waiter sees the newest version, not every one.

    A wait is a future and a timer, no task: each engine's stream waits here, and all of them wake up at once.
    """

    def __init__(self) -> None:
        self.version = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of waiters."""
        return len(self._waiters)

    def notify(self) -> None:
        """Move the version and wake all waiters."""
        self.version += 1
        for waiter in self._waiters:
            _wake(waiter)

    async def wait(self, seen: int, seconds: float) -> int:
        """Return the version once it differs from *seen*, or after *seconds*."""
        if self.version == seen:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(max(seconds, 0.0), _wake, waiter)
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                timer.cancel()
        return self.version


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class TokenBucket:
    """A token bucket: *rate* a second in the long run, up to *burst* at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._at = clock()

    @property
    def full(self) -> bool:
        """Whether the whole burst is available."""
        self._refill()
        return self._level >= self._burst

    def try_take(self, amount: float) -> bool:
        """Consume *amount* if it is available; return whether it was."""
        self._refill()
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def debt(self, amount: float) -> float:
        """Consume *amount* in any case; return the seconds until the bucket is out of debt, 0 if it is not in debt."""
        self._refill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now


class ByteSemaphore:
    """Bytes that are processed at a time; callers beyond that wait, first come, first served.

    A reservation larger than *size* proceeds alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._in_use = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    def reserve(self, size: int) -> _Reservation:
        """Return a context that holds *size* bytes: ``async with semaphore.reserve(size)``."""
        return _Reservation(self, size)

    async def acquire(self, size: int) -> None:
        """Wait until *size* bytes are free, and acquire them."""
        if not self._turn.locked() and self._fits(size):
            # No waiters: without yielding to the loop.
            self._in_use += size
            return
        async with self._turn:
            while not self._fits(size):
                self._freed.clear()
                await self._freed.wait()
            self._in_use += size

    def _fits(self, size: int) -> bool:
        return not self._in_use or self._in_use + size <= self._size

    def release(self, size: int) -> None:
        """Release bytes that were acquired."""
        self._in_use -= size
        self._freed.set()


class _Reservation:
    """The context of :meth:`ByteSemaphore.reserve`: contextlib takes several times as long, once a message."""

    __slots__ = ("_semaphore", "_size")

    def __init__(self, semaphore: ByteSemaphore, size: int) -> None:
        self._semaphore = semaphore
        self._size = size

    async def __aenter__(self) -> None:
        await self._semaphore.acquire(self._size)

    async def __aexit__(self, *_: object) -> None:
        self._semaphore.release(self._size)


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
