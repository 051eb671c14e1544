"""Moments: the present as a command shows it, which is the bundle's time where a bundle is read, and those that people write."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day

import click
from penstock.agent.parsing import parse_duration

_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d(:\d\d)?")
Moment = timedelta | time_of_day | datetime
"""How long ago, a time of the last 24 hours, or a date and time with its zone."""

_META = "penstock.now"


def parse_moment(text: str) -> Moment:
    """Parse ``21:43``, ``2026-11-28T21:43:10Z`` or ``10m``, which is ago; without a zone the time is local.

    Raises:
        ValueError: it is none of these; the sentence names it.

    """
    try:
        if _TIME_OF_DAY.fullmatch(text):
            return time_of_day.fromisoformat(text.zfill(len(text) + (text.index(":") == 1)))
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


def current_time() -> float:
    """Return seconds since the epoch."""
    context = click.get_current_context(silent=True)
    frozen = None if context is None else context.meta.get(_META)
    return time.time() if frozen is None else float(frozen)


def freeze(context: click.Context, moment: float) -> None:
    """Stop the clock of the command line of *context* at *moment*."""
    # All contexts of a command line share it.
    context.meta[_META] = moment
