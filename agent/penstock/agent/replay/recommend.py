"""The search for the policy whose replay is best: which fields are tried, and which replay is better. Pure.

Fewer failed loads come first, then less waiting, then fewer recomputed tokens. A field that can only add failures to a
replay (``auto``, its limit and its budget) is not tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.rules import WAIT_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.agent.replay.counts import Counts

Value = str | int | timedelta

MIN_LOADS: Final = 30
"""With fewer loads nothing is recommended: of what never happens in 30, one in ten may still be missed."""

MAX_REPLAYS: Final = 64
"""Without the one of today's policies."""

# A gain below this share is no reason to change a policy; nor are waits of less than a second in all.
_WORTH: Final = 0.05
_WORTH_NS: Final = 1_000_000_000
# Of the loads that succeed today this share has to.
_KEPT: Final = 0.99
_LEAST_WAIT: Final = timedelta(seconds=1)
_MOST_WAIT: Final = timedelta(seconds=WAIT_BOUNDS.most)
_WITHOUT_WAITS: Final = (timedelta(seconds=30), timedelta(seconds=5))
_FAILURES: Final = (10, 5, 3)
_DURATIONS: Final = (timedelta(minutes=1), timedelta(minutes=5))
_WINDOW: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was recorded that decides what is tried.

    Attributes:
        kv: there are loads of KV.
        ec: there are loads of encoder outputs.
        start_waits_ns: of loads that succeeded, until their transfer began.
        transfer_waits_ns: of the same, from there.

    """

    kv: bool = True
    ec: bool = False
    start_waits_ns: tuple[int, ...] = ()
    transfer_waits_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """A replay of a candidate on top of today's policies, or of these alone.

    Attributes:
        fields: of the candidate, by path below ``spec``.
        counts: of the loads.
        in_flight: of the loads cut, those in mid-transfer (:attr:`Note.IN_FLIGHT`): they may fail instead.

    """

    fields: Mapping[str, Value]
    counts: Counts
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search.

    Attributes:
        best: None if nothing is better than today's policies.
        trials: all that were replayed, in this order.
        complete: False if the search ended before it had tried all.

    """

    best: Trial | None
    trials: tuple[Trial, ...]
    complete: bool


class _StoppedError(Exception):
    """No more replays."""


def search(today: Trial, seen: Seen, replayed: Callable[[Mapping[str, Value]], Trial | None]) -> Found:
    """Return the best policy, changing one group of fields at a time until no change is better.

    Args:
        today: the replay of today's policies.
        seen: what was recorded.
        replayed: replays a candidate's fields on top of today's policies; None ends the search.

    """
    run = _PolicySearch(today, replayed)
    steps = tuple(_steps(today.counts, seen))
    complete = True
    try:
        while run.improve(steps):
            pass
    except _StoppedError:
        complete = False
    best = None if run.best is today else run.best
    return Found(best, tuple(run.trials.values()), complete)


def is_better(new: Trial, old: Trial, today: Trial) -> bool:
    """Return whether *new* is better than *old*, by enough to change a policy for it.

    Loads that only *new* leaves unknown, or cuts in mid-transfer, count as failed.
    """
    new_failed, old_failed = _failed(new, today), _failed(old, today)
    if new_failed != old_failed:
        return new_failed < old_failed
    gain = old.counts.waited_ns - new.counts.waited_ns
    if gain >= _WORTH_NS and gain >= _WORTH * old.counts.waited_ns:
        return True
    saved = old.counts.tokens_recomputed - new.counts.tokens_recomputed
    return gain >= 0 and saved > 0 and saved >= _WORTH * old.counts.tokens_recomputed


def is_harmless(new: Trial, today: Trial) -> bool:
    """Return whether no more loads fail than today, and those that succeed today still do, but for one in a hundred."""
    least = math.ceil(_KEPT * today.counts.loaded)
    return _failed(new, today) <= today.counts.failed and new.counts.loaded >= least


def _failed(trial: Trial, today: Trial) -> int:
    unknown = max(0, trial.counts.unknown - today.counts.unknown)
    return trial.counts.failed + unknown + max(0, trial.in_flight - today.in_flight)


class _PolicySearch:
    def __init__(self, today: Trial, replayed: Callable[[Mapping[str, Value]], Trial | None]) -> None:
        self._today = today
        self._replayed = replayed
        self.trials: dict[tuple[tuple[str, Value], ...], Trial] = {}
        self.best = today

    def improve(self, steps: Sequence[Mapping[str, Value]]) -> bool:
        """Try each step from the best so far; return whether one was better."""
        before = self.best
        for step in steps:
            fields = {**self.best.fields, **step}
            if fields != self.best.fields:
                trial = self._try(fields)
                if is_harmless(trial, self._today) and is_better(trial, self.best, self._today):
                    self.best = trial
        return self.best is not before

    def _try(self, fields: Mapping[str, Value]) -> Trial:
        key = tuple(sorted(fields.items()))
        if key not in self.trials:
            trial = self._replayed(fields) if len(self.trials) < MAX_REPLAYS else None
            if trial is None:
                raise _StoppedError
            self.trials[key] = trial
        return self.trials[key]


def _steps(today: Counts, seen: Seen) -> Iterator[Mapping[str, Value]]:
    """Yield the changes, the mildest of a field first."""
    lost = today.failed or today.recomputed or today.unknown
    for channel, is_there in (("kv", seen.kv), ("ec", seen.ec)):
        if is_there and lost:
            for action in ("recompute", "fail"):
                yield {f"{channel}LoadFailure.action": action}
    if lost:
        for failures in _FAILURES:
            for duration in _DURATIONS:
                yield {
                    "peerQuarantine.failures": failures,
                    "peerQuarantine.window": _WINDOW,
                    "peerQuarantine.duration": duration,
                }
    if today.waited_ns >= _WORTH_NS:
        for path, waits in (
            ("deferral.maxTransferWait", seen.transfer_waits_ns),
            ("deferral.maxStartWait", seen.start_waits_ns),
        ):
            for bound in wait_bounds(waits):
                yield {path: bound, "deferral.onTimeout": "recompute"}


def wait_bounds(waits_ns: Sequence[int]) -> tuple[timedelta, ...]:
    """Return limits that loads as the recorded ones keep, the longest first: twice the longest wait, it, and the 99th percentile.

    Rounded up to two digits, and a second at least: a limit of milliseconds cuts whatever is a little late.
    """
    if not waits_ns:
        return _WITHOUT_WAITS
    ordered = sorted(waits_ns)
    percentile = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return tuple(
        sorted({_rounded(each) for each in (2 * ordered[-1], ordered[-1], percentile)}, reverse=True)
    )


def _rounded(wait_ns: int) -> timedelta:
    milliseconds = -(-wait_ns // 1_000_000)
    unit = 10 ** max(0, len(str(milliseconds)) - 2)
    # Clamped first: a broken clock's wait is more than a timedelta holds.
    rounded = min(-(-milliseconds // unit) * unit, round(_MOST_WAIT / timedelta(milliseconds=1)))
    return max(timedelta(milliseconds=rounded), _LEAST_WAIT)
