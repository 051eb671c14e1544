"""The trace sample ratio that policies set for an engine."""

from __future__ import annotations

import json

import pytest
from penstock.agent.model import EngineKey, Source
from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.distribution.traced_policies import SampleRatios
from penstock.agent.policy.manifest.manifest import parse_manifest
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

SOURCE = Source(epoch=1, key=EngineKey("", "0"), process="engine-core", model="m", labels={"role": "decode"})


@pytest.fixture
def database(tmp_path):
    """Open a policy database."""
    database = PolicyDatabase.open(tmp_path)
    yield database
    database.close()


def manifest(role: str, ratio: float):
    """Return a policy that sets the ratio of a role."""
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": {"name": f"sampling-{role}"},
        "spec": {"selector": {"matchLabels": {"role": role}}, "telemetry": {"traceSampleRatio": ratio}},
    }
    return parse_manifest(json.dumps(document))


async def test_the_ratio_is_that_of_the_policies_in_force(database):
    """There is none without a policy that selects the role; a change holds within a second."""
    now = [1_800_000_000.0]
    store, pauses = PolicyStore(database), Pauses(database)
    ratios = SampleRatios(store, PolicyFeed(store, pauses, OrderStore(database)), clock=lambda: now[0])
    assert ratios(SOURCE) is None
    await store.apply(manifest("prefill", 0.1), author="test")
    await store.apply(manifest("decode", 0.25), author="test")
    assert ratios(SOURCE) is None
    now[0] += 1.0
    assert ratios(SOURCE) == 0.25
    await store.delete("sampling-decode", author="test", reason="")
    now[0] -= 3600.0
    assert ratios(SOURCE) is None
