"""What the detectors read: the processes of one engine as they are now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.proto.names import ENGINE_CORE, NANOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.sources import LiveSource
    from penstock.agent.stalls.history import CountHistory
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, Progress, Snapshot


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
