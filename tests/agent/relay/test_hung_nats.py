"""A cluster of real nats-servers, one of which hangs or is away: the relay's lease and its writes go on at the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import KeyValueConfig
from penstock.agent.policy.sources.nats.connection import NatsAccess, connected, open_or_create
from penstock.agent.relay.object_status.nats_lease import NatsLease
from penstock.agent.relay.policies.nats_policies import NatsPolicies

from tests.support.nats.cluster import NatsCluster, leader_of
from tests.support.nats.server import NatsServer
from tests.support.policy.feed import eventually
from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js.client import JetStreamContext


SECONDS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    """Run three servers."""
    started = NatsCluster(tmp_path).start()
    yield started
    started.kill()


async def _created(stream: JetStreamContext, bucket: str) -> str:
    """Create a bucket with three replicas, as soon as the cluster does that; return its leader."""
    async with asyncio.timeout(60):
        while True:
            try:
                await open_or_create(stream, KeyValueConfig(bucket=bucket, history=8))
                # One that was made while a server was not there yet has one replica.
                if (await stream.stream_info(f"KV_{bucket}")).config.num_replicas != 3:
                    await stream.delete_key_value(bucket)
                elif leader := await leader_of(stream, bucket):
                    return leader
            except Exception:  # noqa: BLE001  (it has no leader yet)
                pass
            await asyncio.sleep(0.1)


async def test_a_bucket_of_a_server_alone(tmp_path: Path) -> None:
    """It has one replica; one that is there stays as it is."""
    alone = NatsServer(tmp_path / "alone").start()
    try:
        async with await alone.client() as client:
            stream = client.jetstream()
            for history in (8, 1):
                await open_or_create(stream, KeyValueConfig(bucket="b", history=history))
            config = (await stream.stream_info("KV_b")).config
            assert (config.num_replicas, config.max_msgs_per_subject) == (1, 8)
    finally:
        alone.kill()


async def test_one_server_hangs(cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bucket has three replicas. The lease is taken at another server, and policies are written there at once."""
    async with await cluster.servers["n0"].client() as client:
        stream = client.jetstream(timeout=1)
        leaders = {await _created(stream, bucket) for bucket in ("policies", "policies-leader")}
    hung = next(name for name in cluster.servers if name not in leaders)
    first = [cluster.servers[hung].url, *(url for url in cluster.urls if url != cluster.servers[hung].url)]
    access = NatsAccess(tuple(first))
    asked: list[int] = []

    def note(access: NatsAccess, attempt: int, *more: Any) -> AbstractAsyncContextManager[Client]:
        asked.append(attempt)
        return connected(access, attempt, *more)

    monkeypatch.setattr("penstock.agent.relay.policies.nats_policies.connected", note)
    cluster.servers[hung].stop()
    lease = NatsLease(access, "policies", SECONDS)
    holding = asyncio.ensure_future(lease.run())
    try:
        policies = NatsPolicies("nats", access, "policies")
        await policies.put(manifest("a"))
        assert set((await policies.read()).policies) == {"a"}
        # The hung one once, and then the next.
        assert asked.count(0) == 1
        await eventually(lambda: lease.held, "the lease is taken at another server")
    finally:
        cluster.servers[hung].go_on()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
