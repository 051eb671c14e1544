"""What connectors cannot do of what a policy asks."""

from __future__ import annotations

import pytest
from penstock.agent.admin.lookups.policy_impact import connector_shortfalls
from penstock.proto.v1.snapshot_pb2 import EngineFacts

FAILS = "it fails and is not recomputed"
LASTS = "the blocks stay pinned until"
IN_STEP = "no request waits for it"
EVERYTHING = ["kvLoadFailure.action", "deferral.maxTransferWait", "deferral.maxStartWait"]


@pytest.mark.parametrize(
    ("connector", "role", "action", "said"),
    [
        ("NixlConnector", "kv_both", "recompute", []),
        ("NixlPushConnector", "kv_producer", "auto", []),
        ("MooncakeConnector", "kv_consumer", "recompute", [LASTS]),
        ("MooncakeConnector", "kv_both", "recompute", [LASTS]),
        ("LMCacheMPConnector", "kv_both", "recompute", [FAILS, LASTS]),
        ("LMCacheMPConnector", "kv_both", "auto", [FAILS, LASTS]),
        ("LMCacheMPConnector", "kv_both", "fail", [LASTS]),
        ("LMCacheMPConnector", "kv_consumer", "recompute", [LASTS]),
        ("MultiConnector", "kv_consumer", "recompute", [FAILS, LASTS]),
        ("ExampleConnector", "kv_consumer", "recompute", [IN_STEP]),
        ("", "", "recompute", []),
    ],
)
def test_shortfalls(connector: str, role: str, action: str, said: list[str]) -> None:
    """A connector that saves cannot recompute a request that ran; of a load that is not NIXL's a deadline ends the request only."""
    found = list(connector_shortfalls(EVERYTHING, action, EngineFacts(kv_connector=connector, kv_role=role)))
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))


def test_a_policy_that_asks_for_none_of_it() -> None:
    """Only fields that the policy sets are reported, not those of other policies."""
    facts = EngineFacts(kv_connector="LMCacheMPConnector", kv_role="kv_both")
    assert list(connector_shortfalls(["deferral.onTimeout"], "recompute", facts)) == []


@pytest.mark.parametrize(
    ("connector", "said"),
    [
        ("NixlConnector", []),
        ("NixlPushConnector", []),
        ("MooncakeConnector", ["what MooncakeConnector brings is counted as unverified"]),
        ("MultiConnector", ["what other connectors than NIXL's bring is counted as unverified"]),
    ],
)
def test_connectors_that_cannot_verify(connector: str, said: list[str]) -> None:
    """Only what NIXL moves is compared."""
    facts = EngineFacts(kv_connector=connector, kv_role="kv_consumer")
    found = list(connector_shortfalls(["integrity.sampleRatio"], "", facts))
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))
