"""Engines without what takes longest to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import OUTCOME_FAILED
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import TIME, sample_batch
from tests.support.agent.stories import closed, outcome

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness


def test_an_engine_without_its_counters_is_the_same_otherwise(harness: AdminHarness) -> None:
    """What takes longest is left out when it is not asked for."""
    core = harness.source("0")
    harness.append(core, closed("r1"), outcome("r1", OUTCOME_FAILED), batch=sample_batch(["a"]))
    harness.snapshot(core, Snapshot(time_unix_nano=TIME, engine={"model": "tiny"}))
    whole = harness.stub.ListEngines(admin.ListEnginesRequest()).engines[0]
    assert whole.HasField("counters")
    assert whole.HasField("compared")
    assert whole.last_loads
    for field in ("counters", "compared", "last_loads"):
        whole.ClearField(field)
    assert harness.stub.ListEngines(admin.ListEnginesRequest(without_counters=True)).engines[0] == whole
