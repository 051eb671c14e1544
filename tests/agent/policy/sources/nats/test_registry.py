"""The registry of agents on a real nats-server."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from nats.js.api import KeyValueConfig
from penstock.agent.policy.sources.nats.connection import NatsAccess
from penstock.agent.policy.sources.nats.registry import (
    AgentRegistration,
    RegisteredAgent,
    find_agents,
    open_registry,
    read_agents,
)

from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js.kv import KeyValue

BUCKET = "penstock-agents"


async def _shows(client: Client, *agents: RegisteredAgent) -> None:
    end = time.monotonic() + 60
    while await read_agents(client.jetstream(timeout=60), BUCKET) != list(agents):
        assert time.monotonic() < end, f"not {agents} in 60 s"
        await asyncio.sleep(0.05)


async def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "not in 60 s"
        await asyncio.sleep(0.05)


async def _put_again(bucket: KeyValue, name: str, value: bytes) -> None:
    """Keep an entry of another author, however slowly the others come."""
    while True:
        await bucket.put(name, value)
        await asyncio.sleep(0.5)


async def test_agents_keep_their_entries(tmp_path: Path) -> None:
    """Longer than the time to live; one that ends goes at once, one that is silent expires; garbage is left out."""
    server = NatsServer(tmp_path / "nats").start()
    one, two = RegisteredAgent("one", "10.0.0.1:9465"), RegisteredAgent("two", "10.0.0.2:9465")
    client = await server.client()
    try:
        stream = client.jetstream(timeout=60)
        bucket = await stream.create_key_value(KeyValueConfig(bucket=BUCKET, ttl=3.0))
        tasks = [
            asyncio.ensure_future(AgentRegistration(NatsAccess((server.url,)), BUCKET, agent).run())
            for agent in (one, two)
        ]
        await bucket.put("garbage", b"\xff")
        three = asyncio.ensure_future(_put_again(bucket, "three", b'{"address": "10.0.0.3:9465"}'))
        await _shows(client, one, RegisteredAgent("three", "10.0.0.3:9465"), two)
        three.cancel()
        await _shows(client, one, two)
        tasks[0].cancel()
        await _shows(client, two)
        tasks[1].cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await _shows(client)
        created = await open_registry(client.jetstream(), "other")
        assert (await created.status()).ttl == 30.0
    finally:
        await client.close()
        server.kill()


async def test_two_agents_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stays; the second says where the other is, and takes the name when that one ends."""
    # The pause is a third of it. The bucket has none: on a busy machine the entry of the first would expire.
    monkeypatch.setattr("penstock.agent.policy.sources.nats.registry.TTL_SECONDS", 3.0)
    for name in ("_READ_SECONDS", "_GOODBYE_SECONDS"):
        monkeypatch.setattr(f"penstock.agent.policy.sources.nats.registry.{name}", 60.0)
    server = NatsServer(tmp_path / "nats").start()
    client = await server.client()
    access = NatsAccess((server.url,))
    first, second = (
        AgentRegistration(access, BUCKET, RegisteredAgent("pod", f"10.0.0.{number}:9465"))
        for number in (1, 2)
    )
    try:
        await client.jetstream(timeout=60).create_key_value(KeyValueConfig(bucket=BUCKET))
        one = asyncio.ensure_future(first.run())
        await _shows(client, RegisteredAgent("pod", "10.0.0.1:9465"))
        two = asyncio.ensure_future(second.run())
        await _until(lambda: "another agent, at 10.0.0.1:9465, goes by the name pod" in second.error)
        await _until(lambda: first.error == "")
        one.cancel()
        await _shows(client, RegisteredAgent("pod", "10.0.0.2:9465"))
        await _until(lambda: second.error == "")
        two.cancel()
        await _shows(client)
    finally:
        await client.close()
        server.kill()


async def test_a_server_that_is_restarted_has_the_agents_again(tmp_path: Path) -> None:
    """The agent says that it is not there, and comes back by itself; find_agents says why it finds none."""
    server = NatsServer(tmp_path / "nats").start()
    access = NatsAccess((server.url,))
    agent = RegisteredAgent("pod", "10.0.0.1:9465")
    kept = AgentRegistration(access, BUCKET, agent)
    task = asyncio.ensure_future(kept.run())
    try:
        await _until(lambda: kept.error == "")
        server.kill()
        await _until(lambda: kept.error != "")
        with pytest.raises(OSError, match="cannot be reached"):
            await find_agents(access, BUCKET, 0)
        server.start()
        await _until(lambda: kept.error == "")
        assert await find_agents(access, BUCKET, 1) == [agent]
        with pytest.raises(OSError, match="'none' does not exist"):
            await find_agents(access, "none", 1)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        server.kill()
