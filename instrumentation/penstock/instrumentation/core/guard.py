"""The guard: our own code never raises into the host.

    with guard("nixl.poll"):
        ...telemetry only, never the host's own call...

It contains ``Exception`` (never ``KeyboardInterrupt`` or ``SystemExit``), counts
by hook and error class, and logs at most one line a minute per hook, but none of a
thread that an ending process did not get: that is no fault. Under
``PENSTOCK_GUARD=raise`` it counts and lets the error through, so that tests see
what production contains. :func:`guarded` is the guard as a decorator.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from penstock.instrumentation.core.engine_log import logger
from penstock.instrumentation.core.settings import guard_raises
from penstock.proto.names import NOT_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

OTHER: Final = "other"


def count_entries(counts: Mapping[tuple[str, str], int]) -> int:
    """Return how many entries a drop account, by (reason, kind), counts."""
    return sum(count for (_, kind), count in counts.items() if kind not in NOT_ENTRIES)


class DropCounter:
    """Counts of (word, word) that are removed as they are reported. Safe from any thread.

    At most *limit* different keys are held between two reports; the rest is counted
    under ``("other", "other")``. The lock is re-entrant because a signal handler may
    count on the thread that is counting.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._lock = threading.RLock()
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, first: str, second: str, count: int = 1) -> None:
        """Add *count* to (*first*, *second*)."""
        key = (first, second)
        with self._lock:
            if key not in self._counts and len(self._counts) >= self._limit:
                key = (OTHER, OTHER)
            self._counts[key] = self._counts.get(key, 0) + count

    def drain(self) -> dict[tuple[str, str], int]:
        """Return all counts and remove them."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def snapshot(self) -> dict[tuple[str, str], int]:
        """Return a copy of the counts."""
        with self._lock:
            return dict(self._counts)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def reset(self) -> None:
        """Remove all counts and make the lock anew: for a child after a fork."""
        self._lock = threading.RLock()
        self._counts = {}


LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines of the same hook."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_D = TypeVar("_D")


def is_end_of_process(error: BaseException) -> bool:
    """Whether *error* says that the interpreter is ending: it starts no thread then (CPython 3.12.0 and 3.12.1: before ``atexit``)."""
    return isinstance(error, RuntimeError) and "interpreter shutdown" in str(error)


class Guard:
    """Guards one hook. It holds no state of a call, so it may be entered again and by any thread."""

    __slots__ = ("_guards", "_hook")

    def __init__(self, guards: GuardRegistry, hook: str) -> None:
        self._guards = guards
        self._hook = hook

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is None or not isinstance(error, Exception):
            return False
        self._guards.record(self._hook, error)
        return not self._guards.raising


class GuardRegistry:
    """The guards of the process, and the counts of what they contained.

    Attributes:
        raising: let errors through after counting them.

    """

    def __init__(self, *, raising: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.raising = raising
        self.counts = DropCounter()
        self._clock = clock
        self._guards: dict[str, Guard] = {}
        self._quiet_until: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def __call__(self, hook: str) -> Guard:
        """Return the guard of *hook*; always the same object."""
        found = self._guards.get(hook)
        return found if found is not None else self._guards.setdefault(hook, Guard(self, hook))

    def record(self, hook: str, error: BaseException) -> None:
        """Count *error* and log it unless this hook logged within the last minute. Never raises."""
        try:
            self.counts.add(hook, type(error).__name__)
            if is_end_of_process(error):
                return
            now = self._clock()
            if now < self._quiet_until.get(hook, 0.0):
                self._unlogged[hook] = self._unlogged.get(hook, 0) + 1
                return
            self._quiet_until[hook] = now + LOG_INTERVAL
            logger.warning(
                "penstock contained an error of its own in %s (%d more since the last line); vLLM is not affected",
                hook,
                self._unlogged.pop(hook, 0),
                exc_info=error,
            )
        except Exception:  # noqa: BLE001, S110  (the host's logging is broken; the guard is the last line)
            pass

    def reset(self) -> None:
        """Forget the counts: for a child after a fork. Guards that hooks hold stay valid."""
        self.counts.reset()
        self._quiet_until.clear()
        self._unlogged.clear()


guard = GuardRegistry(raising=guard_raises(os.environ))


def guarded(hook: str, *, default: _D) -> Callable[[Callable[_P, _R]], Callable[_P, _R | _D]]:
    """Return a decorator that contains errors by the guard of *hook* and returns *default* in their place.

    Without an error it costs one call; the guard itself is entered only once an exception is there.
    """
    contained = guard(hook)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | _D]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | _D:
            try:
                return function(*args, **kwargs)
            except Exception:
                with contained:
                    raise
            return default

        return call

    return decorate
