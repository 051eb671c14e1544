"""Rollouts to a data-parallel server, one of whose engines does not answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.policy.policies import document

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness

_EARLY, _LATE = 1, 2**62


@pytest.mark.parametrize(
    ("goodbye", "started", "state"),
    [
        (False, _EARLY, "waiting"),
        (True, _EARLY, "disconnected"),
        # Of a later life of the server, which has fewer engines, or of unknown age.
        (False, _LATE, "disconnected"),
        (False, 0, "disconnected"),
    ],
    ids=["hangs", "said goodbye", "of an earlier life", "unknown"],
)
def test_an_engine_that_vanished_beside_another_is_awaited(
    harness: AdminHarness, goodbye: bool, started: int, state: str
) -> None:
    """A rollout that begins once its stream has ended is not done without it, unless it has gone for good."""
    away = harness.source("1", start_time_unix_nano=_EARLY)

    async def end() -> None:
        harness.registry.disconnect(away.epoch, said_goodbye=goodbye)

    harness.source("0", start_time_unix_nano=started)
    harness.run(end())
    harness.engine("0")
    harness.stub.ApplyPolicy(admin.ApplyPolicyRequest(manifest_json=json.dumps(document("p")), all=True))

    request = admin.WatchRolloutRequest()
    request.timeout.FromMilliseconds(300)
    *_, last = harness.stub.WatchRollout(request)

    assert {item.key.engine: item.state for item in last.engines} == {"0": "acknowledged", "1": state}
    assert last.done is (state == "disconnected")
    errors = [item.error for item in last.engines if item.error]
    assert errors == ([] if last.done else ["disconnected, while another engine of its server is connected"])
