"""The condition under which a child may use grpc.

A child must not use grpc if grpc's threads were alive at the fork: it may hang, or
abort the whole process ("Check failed: g_active_poller"). So our threads close
their streams before a fork and go on after it, and the child goes on only if no
thread of grpc was left, ours or the host's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

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


def wait_for_grpc_to_end(deadline: float) -> bool:
    """Wait until grpc's core has shut down, until *deadline* on the monotonic clock; return whether it has."""
    if not any(name in sys.modules for name in ("grpc", "grpc._cython.cygrpc")):
        return True
    try:
        while grpc_threads():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)
    except OSError:
        return False
    return True
