"""How often workers look at their transfers, by the steps between two snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources import Registry
from penstock.agent.stalls import StallWatch
from penstock.proto.v1.snapshot_pb2 import Snapshot

KEY = EngineKey("", "0")
_SECOND = 10**9


class _Scene:
    """One engine with an EngineCore and workers, and the watch over them."""

    def __init__(self, *processes: str) -> None:
        self.seconds = 1_000
        self.registry = Registry(lambda: self.seconds * _SECOND)
        self.watch = StallWatch(self.registry.sources, lambda: self.seconds)
        for epoch, process in enumerate(processes, 1):
            source = Source(epoch=epoch, key=KEY, process=process, rank=epoch, start_time_unix_nano=epoch)
            self.registry.connect(source, 0)

    def tick(self, steps: int, *, in_flight: int = 1, epoch: int = 1, **fields: Any) -> float:
        """Report after a second that there were so many steps in all; return the seconds between two looks, 0 for unknown."""
        self.seconds += 1
        values = {"progress": {"steps": steps}, "in_flight": [{"count": in_flight}], **fields}
        self.registry.snapshot(epoch, Snapshot(time_unix_nano=self.seconds * _SECOND, **values))
        self.watch.look()
        return self.watch.look_seconds.get(KEY, 0.0)


def test_steps_between_two_snapshots_are_looks() -> None:
    """The mean of those while something is in flight; a second without a step is one between two looks."""
    scene = _Scene("worker")
    assert scene.tick(100) == 0.0
    assert scene.tick(110) == pytest.approx(0.1)
    assert scene.tick(120) == pytest.approx(0.1)
    # Idle: nothing is looked at, and it says nothing.
    assert scene.tick(120, in_flight=0) == pytest.approx(3 / 20)
    assert scene.tick(120, in_flight=0) == pytest.approx(3 / 20)
    # A minute of long steps is how it is now.
    found = [scene.tick(121 + each) for each in range(60)]
    assert found[-1] == pytest.approx(1.0)


def test_a_snapshot_is_read_once() -> None:
    """Also if the watch looks twice before the next one."""
    scene = _Scene("worker")
    scene.tick(1)
    assert scene.tick(11) == pytest.approx(0.1)
    scene.watch.look()
    assert scene.watch.look_seconds[KEY] == pytest.approx(0.1)


def test_what_is_not_known() -> None:
    """An EngineCore counts other steps; a pause hides them; an engine of old reports none."""
    core = _Scene("engine-core")
    assert [core.tick(each) for each in (1, 2, 3)] == [0.0] * 3
    paused = _Scene("worker")
    assert [paused.tick(each, paused=True) for each in (1, 2, 3)] == [0.0] * 3
    assert paused.tick(13) == 0.0
    assert paused.tick(23) == pytest.approx(0.1)
    old = _Scene("worker")
    assert [old.tick(0, progress=None) for _ in range(3)] == [0.0] * 3


def test_the_slowest_worker_counts() -> None:
    """A load ends with its last rank."""
    scene = _Scene("worker", "worker")
    for each in range(4):
        scene.tick(10 * each)
        found = scene.tick(each, epoch=2)
    assert found == pytest.approx(2.0)
