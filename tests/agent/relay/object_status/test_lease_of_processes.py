"""Two real relays and one lease at a real nats-server: the holder is stopped, or ends."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from nats.js.api import KeyValueConfig

from tests.support.agent.agent import short_directory, wait_until
from tests.support.agent.relay import RelayProcess
from tests.support.nats.server import NatsServer
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.msg import Msg


class Pair(NamedTuple):
    """The first holds the lease; all writes of lease and policies, in order, as NATS tells everybody."""

    first: RelayProcess
    second: RelayProcess
    leases: list[str]
    policies: list[str]


@asynccontextmanager
async def _pair(directory: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as parts:
        server = NatsServer(directory / "nats").start()
        parts.callback(server.kill)
        client = await server.client()
        parts.push_async_callback(client.close)
        await client.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=8))
        leader = await client.jetstream().create_key_value(KeyValueConfig(bucket="policies-leader"))
        await leader.put("leader", b'{"holder": "", "duration": 0}')
        relays = []
        for _ in range(2):
            place = parts.enter_context(short_directory())
            flags = (f"--agents=one=unix://{place}/none.sock", f"--policy-source={server.url}/policies")
            relays.append(RelayProcess(place, *flags))
            parts.callback(relays[-1].stop)
        pair = Pair(relays[0], relays[1], [], [])

        async def lease(message: Msg) -> None:
            pair.leases.append(json.loads(message.data)["holder"])

        async def policy(message: Msg) -> None:
            pair.policies.append(message.subject)

        await client.subscribe("$KV.policies-leader.leader", cb=lease)
        await client.subscribe("$KV.policies.>", cb=policy)
        await _until(pair.first.start)
        await _until(wait_until, lambda: _taken(pair.first) == 1, "the first relay takes the lease")
        await _until(pair.second.start)
        yield pair


async def _until(call: object, *arguments: object) -> None:
    await asyncio.to_thread(call, *arguments)  # type: ignore[arg-type]


def _taken(relay: RelayProcess) -> int:
    return relay.log().count('"lease taken"')


async def test_a_relay_that_was_stopped_for_long_writes_nothing_more(tmp_path: Path) -> None:
    """Another takes over meanwhile; the first, when it goes on, says that it has lost the lease, and writes nothing."""
    async with _pair(tmp_path) as pair:
        holder = pair.leases[-1]
        assert pair.first.process is not None
        stop(pair.first.process.pid)
        try:
            await _until(wait_until, lambda: _taken(pair.second) == 1, "the second relay takes the lease")
        finally:
            pair.first.process.send_signal(signal.SIGCONT)
        await _until(
            wait_until, lambda: '"lease lost"' in pair.first.log(), "the first relay loses the lease"
        )
        # It goes on to read the lease, and leaves it.
        seen = len(pair.leases)
        await _until(wait_until, lambda: len(pair.leases) >= seen + 3, "the second relay renews the lease")
        other = pair.leases[-1]
        assert other != holder
        assert holder not in pair.leases[pair.leases.index(other) :]
        assert (_taken(pair.first), _taken(pair.second)) == (1, 1)
        assert pair.policies == []


async def test_a_relay_that_ends_gives_its_lease_back(tmp_path: Path) -> None:
    """By SIGTERM, as a roll-out of its Deployment ends it; the other takes it without waiting for its time."""
    async with _pair(tmp_path) as pair:
        holder = pair.leases[-1]
        assert await asyncio.to_thread(pair.first.stop) == 0
        await _until(wait_until, lambda: _taken(pair.second) == 1, "the second relay takes the lease")
        await _until(wait_until, lambda: pair.leases[-1] not in (holder, ""), "NATS tells it")
        last = len(pair.leases) - pair.leases[::-1].index(holder)
        assert pair.leases[last] == ""
