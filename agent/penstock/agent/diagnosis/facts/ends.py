"""When what a cause is about has ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable


def ended_at(signs: Iterable[int], now: int) -> int:
    """Return the last of *signs*, if none has come for a minute and for three times their usual pause; else 0.

    Args:
        signs: when it was seen, nanoseconds.
        now: nanoseconds.

    """
    times = sorted(signs)
    if not times:
        return 0
    pause = (times[-1] - times[0]) / len(times)
    quiet = now - times[-1] >= max(limits.QUIET_SECONDS * NANOS, limits.QUIET_PAUSES * pause)
    return times[-1] if quiet else 0
