"""The condition under which a child may use grpc.

A child must not use grpc if grpc's threads were alive at the fork: it may hang, or
abort the whole process ("Check failed: g_active_poller"). So our threads close
their streams before a fork and go on after it, and the child goes on only if no
thread of grpc was left, ours or the host's.

Threads of grpc's core have names. Its Python threads, and those of our streams, are
waited for, too: the last of them to let go of a channel runs the core's shutdown, and holds
its lock for a moment after the core's threads have ended. A child that inherits that lock
waits for it for ever.

What a child has of its parent's gRPC it must never let go of (:func:`grpc_objects`). The destructor of a call takes the
call's lock, and that of a channel the core's. Where a thread that the child does not have held it at the fork, the child
waits for ever. What the parent has closed is no exception: a call that has failed is in a cycle with its traceback, and
the collector of a child may be the one that finds it.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

# As the kernel cuts them, to 15 characters (grpc 1.62 to 1.85).
_GRPC_THREADS: Final = (
    "event_engine",
    "lifeguard",
    "grpc_",
    "timer_manager",
    "default-executo",
    "resolver-execut",
)
_POLL: Final = 0.001
# A thread has its name only when it has run for a moment; so none is seen twice in a row.
_LOOKS: Final = 2

READER_THREAD: Final = "penstock-reader"
"""Name of the threads that read from our streams, where each has one."""

STREAMS_THREAD: Final = "penstock-streams"
"""Name of the thread of all our streams."""


def grpc_threads() -> int:
    """Return how many threads of grpc's core run in this process (Linux; raises OSError elsewhere)."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except OSError:  # it ended meanwhile
            continue
        found += name.startswith(_GRPC_THREADS)
    return found


def threads_inside_grpc() -> int:
    """Return how many Python threads may be executing grpc's code: its own, those of our streams, and ending ones."""
    return sum(_may_be_inside_grpc(thread) for thread in threading.enumerate())


def _may_be_inside_grpc(thread: threading.Thread) -> bool:
    # A thread drops its target, and with it what that refers to, as the last thing before it ends.
    if not hasattr(thread, "_target"):
        return True
    module = getattr(thread._target, "__module__", None) or ""  # noqa: SLF001  (nothing else says whose it is)
    return thread.name in (READER_THREAD, STREAMS_THREAD) or module.partition(".")[0] == "grpc"


def wait_for_grpc_to_end(deadline: float) -> bool:
    """Wait until grpc has shut down, until *deadline* on the monotonic clock; return whether it has."""
    if not any(name in sys.modules for name in ("grpc", "grpc._cython.cygrpc")):
        return True
    looks, enough = 0, _LOOKS if time.monotonic() < deadline else 1
    try:
        while True:
            looks = 0 if threads_inside_grpc() or grpc_threads() else looks + 1
            if looks == enough:
                return True
            if not looks and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)
    except OSError:
        return False


_alive: Final[WeakValueDictionary[int, object]] = WeakValueDictionary()


def note_grpc_object(thing: object) -> None:
    """Note a call or a channel for :func:`grpc_objects`, as long as it lives. From any thread."""
    _alive[id(thing)] = thing


def grpc_objects() -> list[object]:
    """Return the calls and channels of this process that are alive, with those that only the collector would find."""
    return [found for reference in _alive.valuerefs() if (found := reference()) is not None]
