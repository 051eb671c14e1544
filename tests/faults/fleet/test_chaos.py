"""Servers of policy sources killed under changes: the short run. ``make chaos`` is the long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.fleet.chaos import LEADER, Chaos
from tests.support.agent.agent import short_directory
from tests.support.kubernetes.api_server import ApiServer

if TYPE_CHECKING:
    from pathlib import Path

SEED = 3


def _objects(directory: Path) -> ApiServer:
    (directory / "cluster").mkdir()
    return ApiServer(directory / "cluster")


@pytest.mark.parametrize("place", ["bucket", pytest.param("bucket and objects", marks=pytest.mark.long)])
async def test_random_kills_under_changes(place: str) -> None:
    """Each engine ends with what a model computes from the confirmed writes; none lost a policy meanwhile."""
    with short_directory() as directory:
        cluster = _objects(directory) if "objects" in place else None
        async with Chaos(directory, SEED, cluster) as chaos:
            await chaos.run(seconds=5, changes=10, kills=2)
            await chaos.check()
    assert chaos.done[LEADER] >= 2
    assert chaos.intruder.refused["bucket"] > 0
    assert chaos.intruder.refused["owned policies"] > 0
