"""How often a worker looks at its transfers: a transfer's duration runs until the next look."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.proto.names import ENGINE_CORE, NANOS

if TYPE_CHECKING:
    from penstock.agent.sources import LiveSource

_KEPT: Final = 60
"""Snapshots, a second apart, between which something was in flight."""


class LookIntervals:
    """Of one worker: its connector looks at the transfers once in each step that it is given.

    An EngineCore counts other steps, also where the worker is part of it: of that, nothing is known.
    """

    def __init__(self) -> None:
        """Know of no snapshot."""
        self._kept: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._time = 0
        self._steps = 0
        self._in_flight = False

    def add(self, live: LiveSource) -> None:
        """Read the worker's last snapshot; one that was read before changes nothing."""
        snapshot = live.snapshot
        if snapshot is None or live.source.process == ENGINE_CORE or snapshot.time_unix_nano <= self._time:
            return
        if snapshot.paused or not snapshot.HasField("progress"):
            self._time = 0
            return
        in_flight = any(each.count for each in snapshot.in_flight)
        steps = snapshot.progress.steps
        if self._time and (in_flight or self._in_flight):
            self._kept.append((snapshot.time_unix_nano - self._time, max(0, steps - self._steps)))
        self._time, self._steps, self._in_flight = snapshot.time_unix_nano, steps, in_flight

    @property
    def seconds(self) -> float:
        """The mean time between two looks while something was in flight; 0 for not known."""
        nanos, steps = (sum(column) for column in zip(*self._kept, strict=True)) if self._kept else (0, 0)
        return nanos / max(1, steps) / NANOS
