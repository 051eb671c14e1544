"""Moments that people write: a time of day, a date and time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from penstock.agent.parsing import parse_duration

_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d(:\d\d)?")

Moment = timedelta | time | datetime
"""How long ago, a time of the last 24 hours, or a date and time with its zone."""


def parse_moment(text: str) -> Moment:
    """Parse ``21:43``, ``2026-11-28T21:43:10Z`` or ``10m``, which is ago; without a zone the time is local.

    Raises:
        ValueError: it is none of these; the sentence names it.

    """
    try:
        if _TIME_OF_DAY.fullmatch(text):
            return time.fromisoformat(text.zfill(len(text) + (text.index(":") == 1)))
        if "-" in text:
            return datetime.fromisoformat(text).astimezone()
        return parse_duration(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time such as 21:43, 2026-11-28T21:43:10Z or 10m (ago)") from None


def moment_at(moment: Moment, now: float) -> datetime:
    """Return a moment as a local time, where it is *now*, seconds since the epoch.

    Raises:
        OverflowError: it is before all times.

    """
    present = datetime.fromtimestamp(now, UTC).astimezone()
    if isinstance(moment, datetime):
        return moment.astimezone()
    if isinstance(moment, timedelta):
        return present - moment
    # Its own day's offset: clocks may have been changed since.
    today = datetime.combine(present.date(), moment).astimezone()
    if today <= present:
        return today
    return datetime.combine(present.date() - timedelta(days=1), moment).astimezone()


def moment_words(moment: datetime) -> str:
    """Return ``2026-11-28 21:43:10 UTC``, in local time."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
