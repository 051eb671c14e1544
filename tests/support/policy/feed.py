"""The real policy feed on a unix socket, and an engine that talks to it as a test says."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import grpc
from penstock.agent.model import EngineKey
from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.distribution.service import PolicyFeedService
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from penstock.agent.sources.engines import EngineOwners
from penstock.proto.v1.policy_pb2 import PolicyAck, PolicyMoved, PolicyNack, Push, Report, Subscribe
from penstock.proto.v1.policy_pb2_grpc import PolicyFeedStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.agent.policy.distribution.subscriber import Subscriber

DEADLINE = 60.0


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Poll *condition* on the loop until it is true; fail with *what* at the deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:g} s: {what}"
        await asyncio.sleep(0.005)


@dataclass
class FeedServer:
    """What :func:`running_feed` yields."""

    address: str
    database: PolicyDatabase
    store: PolicyStore
    pauses: Pauses
    orders: OrderStore
    feed: PolicyFeed
    owners: EngineOwners
    refused: list[str]


@asynccontextmanager
async def running_feed(
    directory: Path,
    *,
    patience: float = 10.0,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] | None = None,
) -> AsyncIterator[FeedServer]:
    """Serve a feed whose state is below *directory*; without *steady* nothing sets *clock*."""
    database = PolicyDatabase.open(directory)
    clocks = {"clock": clock, "steady": steady or clock}
    store, pauses = PolicyStore(database, **clocks), Pauses(database, **clocks)
    orders = OrderStore(database, **clocks)
    owners = EngineOwners()
    refused: list[str] = []
    feed = PolicyFeed(store, pauses, orders, owners=owners, patience=patience, clock=clock)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((PolicyFeedService(feed, refused.append).handler(),))
    address = f"unix://{directory}/feed.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        yield FeedServer(address, database, store, pauses, orders, feed, owners, refused)
    finally:
        feed.close()
        await server.stop(0)
        database.close()


def subscriber_of(served: FeedServer, engine: Engine) -> Subscriber:
    """Return the feed's record of *engine*, which has subscribed."""
    subscriber = served.feed.subscriber(engine.key)
    assert subscriber is not None
    return subscriber


async def answered(served: FeedServer, engine: Engine) -> Subscriber:
    """Wait until *engine* has answered its last push; return its record."""
    await eventually(lambda: subscriber_of(served, engine).settled, "the engine has answered")
    return subscriber_of(served, engine)


class Engine:
    """An EngineCore's end of the feed; it answers only when the test says so."""

    def __init__(
        self, address: str, engine: str = "0", *, server: str = "", model: str = "tiny", **labels: str
    ) -> None:
        self.key = EngineKey(server, engine)
        self._address = address
        self._subscribe = Subscribe(
            schema_version=1,
            epoch=1,
            key={"server": server, "engine": engine},
            model=model,
            labels={"role": "decode", **labels},
        )
        self._channel: grpc.aio.Channel | None = None
        self._stream: Any = None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self, *, hash_in_force: str = "", first: Report | None = None, **fields: Any) -> None:
        """Open a stream and subscribe."""
        self._channel = grpc.aio.insecure_channel(self._address)
        self._stream = PolicyFeedStub(self._channel).Watch()
        subscribe = Subscribe()
        subscribe.CopyFrom(self._subscribe)
        subscribe.MergeFrom(Subscribe(hash_in_force=hash_in_force, **fields))
        await self._stream.write(first or Report(subscribe=subscribe))

    async def disconnect(self) -> None:
        """Drop the connection, as an engine that dies does."""
        if self._channel is not None:
            self._stream.cancel()
            await self._channel.close()
            self._channel = None

    async def push(self) -> Push:
        """Return the next push."""
        return await asyncio.wait_for(self.push_whenever(), DEADLINE)

    async def push_whenever(self) -> Push:
        """Return the next push, however long it takes."""
        push = await self._stream.read()
        assert push is not grpc.aio.EOF, "the agent ended the stream"
        return cast("Push", push)

    async def ended(self) -> grpc.StatusCode:
        """Wait for the end of the stream and return its status."""
        code: grpc.StatusCode = await asyncio.wait_for(self._stream.code(), DEADLINE)
        return code

    async def report(self, report: Report) -> None:
        """Send any report."""
        await self._stream.write(report)

    async def ack(self, push: Push, **fields: Any) -> None:
        """Say that a push is in force."""
        ack = PolicyAck(nonce=push.nonce, hash=hash_of(push), paused=push.paused)
        ack.MergeFrom(PolicyAck(**fields))
        await self.report(Report(ack=ack))

    async def nack(self, push: Push, error: str, field: str = "", hash_in_force: str = "") -> None:
        """Refuse a push."""
        nack = PolicyNack(nonce=push.nonce, error=error, field=field, hash_in_force=hash_in_force)
        await self.report(Report(nack=nack))

    async def moved(self, policy_hash: str) -> None:
        """Say that the schedule has moved on by itself."""
        await self.report(Report(moved=PolicyMoved(hash=policy_hash)))


def hash_of(push: Push) -> str:
    """Return the hash of what a push puts in force now."""
    return push.schedule[0].hash if push.schedule else ""
