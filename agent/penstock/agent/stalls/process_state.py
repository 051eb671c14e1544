"""What the detectors read: the processes of one engine as they are now, and the counts of each over the last minutes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.proto.names import ENGINE_CORE, NANOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.sources import LiveSource
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, Progress, SchedulerQueue, Snapshot


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of an engine.

    Attributes:
        live: the agent's record of it.
        history: its counts.

    """

    live: LiveSource
    history: CountHistory

    @property
    def snapshot(self) -> Snapshot | None:
        """Its last snapshot; None while it is away or paused, or its Penstock reports no progress."""
        snapshot = self.live.snapshot if self.live.connected else None
        if snapshot is None or snapshot.paused or not snapshot.HasField("progress"):
            return None
        return snapshot

    @property
    def progress(self) -> Progress | None:
        """What its last snapshot says about its progress."""
        return self.snapshot.progress if self.snapshot is not None else None

    @property
    def queue(self) -> SchedulerQueue | None:
        """What its scheduler has, as its last snapshot says; None where that does not."""
        snapshot = self.snapshot
        return snapshot.queue if snapshot is not None and snapshot.HasField("queue") else None

    @property
    def is_core(self) -> bool:
        """Whether it is an EngineCore."""
        return self.live.source.process == ENGINE_CORE

    @property
    def name(self) -> str:
        """As people call it: ``EngineCore`` or ``worker 1``."""
        return "EngineCore" if self.is_core else f"{self.live.source.process} {self.live.source.rank}"

    def age(self, start_unix_nano: int) -> float:
        """Return the seconds between a time of its clock and its last snapshot; 0 for a time that is not set."""
        if not start_unix_nano or self.live.snapshot is None:
            return 0.0
        return max(0.0, (self.live.snapshot.time_unix_nano - start_unix_nano) / NANOS)


@dataclass(frozen=True, slots=True)
class EngineState:
    """The processes of one engine at *now*, seconds by the agent's clock; watched since *begin*."""

    now: float
    processes: Sequence[ProcessState]
    begin: float = 0.0

    def silence(self, process: ProcessState) -> float:
        """Return the seconds without a word of a process; what was before the agent's start does not count."""
        return self.now - max(process.live.last_seen_unix_nano / NANOS, self.begin)

    @property
    def core(self) -> ProcessState | None:
        """Its EngineCore that is connected; None if there is none, or more than one."""
        cores = [each for each in self.processes if each.is_core and each.live.connected]
        return cores[0] if len(cores) == 1 else None

    @property
    def facts(self) -> EngineFacts | None:
        """What its EngineCore says that it is."""
        core = self.core
        if core is None or core.snapshot is None or not core.snapshot.HasField("engine"):
            return None
        return core.snapshot.engine

    @property
    def reporting(self) -> list[tuple[ProcessState, Progress]]:
        """The processes that report their progress, with it."""
        return [(each, each.progress) for each in self.processes if each.progress is not None]


_SPACING: Final = 5.0
"""Seconds between two readings that are kept: 61 readings for five minutes."""
_KEPT_LOOKS: Final = 60
"""Snapshots, a second apart, between which something was in flight."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counts of a process at one time, seconds by the agent's clock."""

    time: float
    steps: int = 0
    requests: int = 0
    to_load: int = 0
    unloaded: int = 0
    eplb_steps: int = 0

    @classmethod
    def of(cls, progress: Progress, now: float) -> Reading:
        """Return what *progress* says at *now*."""
        return cls(
            now,
            progress.steps,
            progress.requests,
            progress.requests_to_load,
            progress.unloaded_requests,
            max((row.steps for row in progress.eplb), default=0),
        )


class CountHistory:
    """Readings of one process, the last one as it is, the earlier ones every five seconds."""

    def __init__(self, window: float) -> None:
        """Keep *window* seconds."""
        self._window = window
        self._kept: deque[Reading] = deque()
        self._steps_at = 0.0
        self._eplb_at = 0.0
        self.last = Reading(0.0)
        self.scheduler = SchedulerHistory()

    def add(self, reading: Reading) -> None:
        """Add the newest reading."""
        if not self._kept or reading.steps != self.last.steps:
            self._steps_at = reading.time
        if not self._kept or reading.eplb_steps != self.last.eplb_steps:
            self._eplb_at = reading.time
        self.last = reading
        if not self._kept or reading.time - self._kept[-1].time >= _SPACING:
            self._kept.append(reading)
        while len(self._kept) > 1 and self._kept[1].time <= reading.time - self._window:
            self._kept.popleft()

    @property
    def first(self) -> Reading:
        """The reading of a window ago, or the first that there is."""
        return self._kept[0] if self._kept else self.last

    @property
    def standing(self) -> float:
        """Seconds since the steps have changed, or since the first reading."""
        return self.last.time - self._steps_at

    @property
    def eplb_standing(self) -> float:
        """Seconds since the forward passes that EPLB counts have changed."""
        return self.last.time - self._eplb_at

    def steps_since(self, time: float) -> int:
        """Return how many steps there were since *time*, as far as readings tell."""
        earlier = [each for each in self._kept if each.time <= time]
        return self.last.steps - (earlier[-1] if earlier else self.first).steps


class SchedulerHistory:
    """When a scheduler last moved, by the clock of its own snapshots: one that comes late is no standstill.

    Attributes:
        moved: nanoseconds of the last snapshot by which it had scheduled a token since the one before, or computed one; 0 for
            never.
        stepped: likewise, by which it had begun a step, also one without a token, or was in one.
        emptied: likewise, by which it had begun one without a token.
        still: snapshots since *moved*, or since the first.

    """

    def __init__(self) -> None:
        self.moved = 0
        self.stepped = 0
        self.emptied = 0
        self.still = 0
        self._time = 0
        self._steps: tuple[int, int] = (0, 0)
        self._empty = 0

    def add(self, snapshot: Snapshot) -> None:
        """Read a snapshot; one that was read before changes nothing."""
        queue, progress, now = snapshot.queue, snapshot.progress, snapshot.time_unix_nano
        if now <= self._time or not snapshot.HasField("queue"):
            return
        begun, last = progress.step_start_time_unix_nano, queue.last_step_time_unix_nano
        steps = (progress.steps, last)
        known = self._time > 0
        # A step takes its tokens after it has begun: an open one that is younger than the last token has none.
        moves = (known and steps != self._steps) or 0 < begun <= last
        empties = known and queue.empty_steps > self._empty
        if moves:
            self.moved = now
        if empties:
            self.emptied = now
        if moves or empties or begun:
            self.stepped = now
        self.still = 0 if moves or not known else self.still + 1
        self._time, self._steps, self._empty = now, steps, queue.empty_steps


class LookIntervals:
    """Of one worker: its connector looks at the transfers once in each step that it is given.

    An EngineCore counts other steps, also where the worker is part of it: of that, nothing is known.
    """

    def __init__(self) -> None:
        """Know of no snapshot."""
        self._kept: deque[tuple[int, int]] = deque(maxlen=_KEPT_LOOKS)
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
