"""When a trouble began and when it ended, by the times of its signs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.agent.diagnosis.facts.windows import Facts


def longest_pause(times: Sequence[int], seconds: float = limits.QUIET_SECONDS) -> float:
    """Return the longest pause, nanoseconds, that is part of a trouble with signs at *times*, sorted and not empty."""
    return max(seconds * NANOS, limits.QUIET_PAUSES * (times[-1] - times[0]) / len(times))


def ended_at(signs: Iterable[int], now: int) -> int:
    """Return the last of *signs*, if none has come for a minute and for three times their usual pause; else 0.

    Args:
        signs: when it was seen, nanoseconds.
        now: nanoseconds.

    """
    times = sorted(signs)
    return times[-1] if times and now - times[-1] >= longest_pause(times) else 0


def first_sign(
    facts: Facts, present: Iterable[int], before: Iterable[int] = (), seconds: float = limits.QUIET_SECONDS
) -> int:
    """Return when a trouble began, nanoseconds: its first sign in the window, or before it without a pause; 0 without any.

    Args:
        facts: whose clock it is.
        present: the times of its signs in the window.
        before: likewise in the time before.
        seconds: pauses up to these are part of it; 0 where there are always some signs, so that only its own pace counts.

    """
    times = sorted(present)
    if not times:
        return 0
    began, pause = times[0], longest_pause(times, seconds)
    for time in sorted(before, reverse=True):
        if began - time > pause:
            break
        began = min(began, time)
    return sane(facts, began)


def sane(facts: Facts, time: int) -> int:
    """Return *time* of an engine or an order, nanoseconds, no later than now; 0 for one that is not set."""
    return max(0, min(time, facts.now))
