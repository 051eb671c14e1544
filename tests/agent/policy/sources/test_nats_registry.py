"""The registry of agents on a real nats-server."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nats.js.api import KeyValueConfig
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.registry import (
    AgentRegistration,
    RegisteredAgent,
    open_registry,
    read_agents,
)

from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from pathlib import Path

    from nats.js.kv import KeyValue

BUCKET = "penstock-agents"


async def _shows(bucket: KeyValue, *agents: RegisteredAgent) -> None:
    end = time.monotonic() + 60
    while await read_agents(bucket) != list(agents):
        assert time.monotonic() < end, f"not {agents} in 60 s"
        await asyncio.sleep(0.05)


async def test_agents_keep_their_entries(tmp_path: Path) -> None:
    """Longer than the time to live; one that ends goes at once, one that is silent expires; garbage is left out."""
    server = NatsServer(tmp_path / "nats").start()
    one, two = RegisteredAgent("one", "10.0.0.1:9465"), RegisteredAgent("two", "10.0.0.2:9465")
    client = await server.client()
    try:
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, ttl=3.0))
        tasks = [
            asyncio.ensure_future(AgentRegistration(NatsAccess((server.url,)), BUCKET, agent).run())
            for agent in (one, two)
        ]
        await bucket.put("three", b'{"address": "10.0.0.3:9465"}')
        await bucket.put("garbage", b"\xff")
        await _shows(bucket, one, RegisteredAgent("three", "10.0.0.3:9465"), two)
        await _shows(bucket, one, two)
        tasks[0].cancel()
        await _shows(bucket, two)
        tasks[1].cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await _shows(bucket)
        created = await open_registry(client.jetstream(), "other")
        assert (await created.status()).ttl == 30.0
    finally:
        await client.close()
        server.kill()
