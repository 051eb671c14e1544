"""What an EC connector cannot do about a policy, and how ``set-policy`` says so."""

from __future__ import annotations

import pytest
from penstock.agent.admin.lookups.policy_impact import ec_shortfalls
from penstock.proto.v1.snapshot_pb2 import EngineFacts

FIELDS = ("ecLoadFailure.action", "peerQuarantine.failures", "peerQuarantine.window")


@pytest.mark.parametrize(
    ("connector", "role", "why"),
    [
        ("", "", ""),
        ("ZmqECConnector", "ec_consumer", ""),
        ("ECCPUConnector", "ec_both", ""),
        ("ECExampleConnector", "ec_producer", ""),
        ("ECExampleConnector", "ec_consumer", "its items lie in a directory and have no peer"),
        ("ECExampleConnector", "ec_both", "its items lie in a directory and have no peer"),
        ("ECMooncakeConnector", "ec_consumer", "encoders push their items to it, and it asks none"),
        ("SomebodysConnector", "ec_consumer", "it does not say which peer it would ask"),
    ],
)
def test_quarantine(connector: str, role: str, why: str) -> None:
    """One sentence for each engine whose encoders cannot be cut off; none where there is nothing to cut off."""
    found = list(ec_shortfalls(FIELDS, EngineFacts(ec_connector=connector, ec_role=role)))
    if not why:
        assert found == []
        return
    assert found == [
        f"spec.peerQuarantine keeps {connector} from no encoder: {why}; KV loads are quarantined as usual"
    ]


def test_other_fields_need_no_peer() -> None:
    """What happens to a load that failed is decided with any connector."""
    facts = EngineFacts(ec_connector="ECExampleConnector", ec_role="ec_consumer")
    assert list(ec_shortfalls(["ecLoadFailure.action"], facts)) == []
