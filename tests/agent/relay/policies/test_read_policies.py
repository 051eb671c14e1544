"""A relay reads the policies of a bucket again and again: what has not changed is neither decoded nor checked again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from nats.js.api import KeyValueConfig
from penstock.agent.policy.manifest import check_manifest
from penstock.agent.policy.sources.nats import source
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.relay.policies import fleet_policies
from penstock.agent.relay.policies.nats_policies import NatsPolicies

from tests.support.nats.server import NatsServer
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server."""
    running = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield running
    running.kill()


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what was decoded and checked, as it comes."""
    found: list[str] = []

    def decode(value: bytes, revision: str) -> object:
        found.append("decoded")
        return _DECODE(value, revision)

    def check(manifest: object) -> object:
        found.append("checked")
        return check_manifest(manifest)

    monkeypatch.setattr(source, "decode_item", decode)
    monkeypatch.setattr(fleet_policies, "check_manifest", check)
    return found


_DECODE = source.decode_item


async def test_a_bucket_that_is_read_again(server: NatsServer, read_again: list[str]) -> None:
    """Once each; a value that changes once more, and one that comes back after it was deleted."""
    async with await server.client() as client:
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="policies"))
        for name in ("a", "b"):
            await bucket.put(name, json.dumps(document(name)).encode())
        await bucket.put("c", b"no: [policy")
        policies = NatsPolicies("nats", NatsAccess((server.url,)), "policies")
        first = await policies.read()
        assert [*first.policies] == ["a", "b"]
        assert [*first.refused] == ["c"]
        assert (read_again.count("decoded"), read_again.count("checked")) == (3, 2)
        assert await policies.read() == first
        assert len(read_again) == 5
        await bucket.put("a", json.dumps(document("other")).encode())
        assert "must be 'a'" in (await policies.read()).refused["a"]
        await bucket.put("a", json.dumps(document("a")).encode())
        again = await policies.read()
        assert again.policies["a"].manifest == first.policies["a"].manifest
        assert again.policies["a"].revision == again.revisions["a"] > first.revisions["a"]
        assert (read_again.count("decoded"), read_again.count("checked")) == (5, 4)
        await bucket.delete("b")
        assert "b" not in (await policies.read()).revisions
        await bucket.put("b", json.dumps(document("b")).encode())
        assert "b" in (await policies.read()).policies
        assert (read_again.count("decoded"), read_again.count("checked")) == (6, 5)
