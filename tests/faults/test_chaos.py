"""Random kills under traffic: the short run. ``make chaos`` is the long one."""

from __future__ import annotations

from tests.faults.bench import bench
from tests.faults.chaos import Chaos
from tests.faults.extent import KILLS

# Any seed must do; this one does each thing within four kills.
SEED = 167


def test_random_kills():
    """Whatever is done to the agent, nothing acknowledged is lost, nothing is there twice, and all adds up."""
    with bench() as stand:
        chaos = Chaos(stand, SEED)
        chaos.run(KILLS)
        stand.settle()
    assert {"kill", "kill while starting", "freeze", "clock", "disk full", "terminate"} <= chaos.done.keys()
