"""Engines that send to one agent over gRPC, each on a stream of its own; they restart, leave and come."""

from __future__ import annotations

import asyncio
import random
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
import numpy as np
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1.common_pb2 import ROLE_DECODE
from penstock.proto.v1.ingest_pb2 import Ack, Batch, Hello
from penstock.proto.v1.snapshot_pb2 import Snapshot

from benchmarks.scale.requests import templates, transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

_METHOD: Final = "/penstock.v1.Ingest/Publish"
_END_SECONDS: Final = 10.0


def peer_names(count: int, first: int = 0) -> list[str]:
    """Return addresses of peers, from the *first* on."""
    return [f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}:5600" for n in range(first, first + count)]


class _Engine:
    """One engine process: its stream, one batch in flight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._epoch = random.getrandbits(63) + 1
        self._seq = 0
        self._call: Any = None

    async def connect(self, channel: grpc.aio.Channel, now: int) -> None:
        """Send Hello and wait for the greeting."""
        self._call = channel.stream_stream(_METHOD, response_deserializer=Ack.FromString)()
        hello = Hello(
            schema_version=SCHEMA_VERSION, key={"engine": self.name}, process="engine-core", model="tiny",
            role=ROLE_DECODE, start_time_unix_nano=now,
        )  # fmt: skip
        await self._call.write(Batch(epoch=self._epoch, hello=hello).SerializeToString())
        assert await self._call.read() is not grpc.aio.EOF, await self._call.details()

    async def publish(self, body: bytes) -> None:
        """Send a batch without a number and wait until it is durable."""
        self._seq += 1
        # What follows is merged into it.
        await self._call.write(Batch(epoch=self._epoch, seq=self._seq).SerializeToString() + body)
        durable = 0
        while durable < self._seq:
            ack = await self._call.read()
            assert ack is not grpc.aio.EOF, await self._call.details()
            durable = ack.durable_watermark

    async def snapshot(self, peers: Iterable[str], now: int) -> None:
        """Send what it holds: it is connected to its peers."""
        snapshot = Snapshot(
            time_unix_nano=now,
            peers=[{"peer": {"address": peer}, "connected": True, "last_active_unix_nano": now} for peer in peers],
            engine={"model": "tiny", "kv_connector": "NixlConnector", "role": ROLE_DECODE},
        )  # fmt: skip
        await self._call.write(Batch(epoch=self._epoch, snapshot=snapshot).SerializeToString())

    async def leave(self) -> None:
        """End without a goodbye, as a process that is killed does."""
        self._call.cancel()
        await asyncio.wait([asyncio.ensure_future(self._call.code())], timeout=_END_SECONDS)


@cache
def _runner() -> asyncio.Runner:
    """Return the event loop of all fleets: gRPC hands what a closed one left behind to the next."""
    return asyncio.Runner()


class Fleet:
    """Engines of one agent; one thread.

    Args:
        address: the agent's, for engines.
        clock: nanoseconds since 1970 in the engines.

    Attributes:
        peers: addresses that each engine reads from.
        asked: ids of requests, one of each pass, the oldest first.

    """

    def __init__(self, address: str, clock: Callable[[], int], engines: int, peers: Sequence[str]) -> None:
        self.peers = list(peers)
        self.asked: list[str] = []
        self._address = address
        self._clock = clock
        self._names = engines
        self._engines: list[_Engine] = []
        self._rng = np.random.default_rng(0)
        self._runner = _runner()
        self._channel: Any = None

    def __enter__(self) -> Self:
        """Connect all engines."""
        self._runner.run(self._connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all streams."""
        self._runner.run(self._channel.close())

    async def _connect(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._address)
        self._engines = [_Engine(str(number)) for number in range(self._names)]
        for engine in self._engines:
            await engine.connect(self._channel, self._clock())

    def tell(self, batches: int = 0) -> None:
        """Send a snapshot and some batches of each engine; 0: as many as it takes to name each peer."""
        self._runner.run(self._tell(batches))

    async def _tell(self, batches: int) -> None:
        made = templates(self.peers, self._clock())
        made = [made[number % len(made)] for number in range(batches or len(made))]
        last = await asyncio.gather(*(self._tell_one(engine, made) for engine in self._engines))
        self.asked.append(last[0])

    async def _tell_one(self, engine: _Engine, made: Sequence[Any]) -> str:
        await engine.snapshot(self.peers, self._clock())
        name = ""
        for template in made:
            body, name = template.renamed(self._rng)
            await engine.publish(body)
        return name

    def fill(self, batches: int) -> None:
        """Send so many full batches of transfers of each engine: what fills a journal fastest."""
        self._runner.run(self._fill(batches))

    async def _fill(self, batches: int) -> None:
        made = [transfers(peer, self._clock()) for peer in self.peers[:batches]]
        made = [made[number % len(made)] for number in range(batches)]
        await asyncio.gather(*(self._tell_one(engine, made) for engine in self._engines))

    def restart(self, place: int, *, renamed: bool = False) -> None:
        """Restart an engine; *renamed*: another one takes its place, with a name that was never there."""
        self._runner.run(self._restart(place % len(self._engines), renamed=renamed))

    async def _restart(self, place: int, *, renamed: bool) -> None:
        old = self._engines[place]
        await old.leave()
        name = str(self._names) if renamed else old.name
        self._names += renamed
        self._engines[place] = _Engine(name)
        await self._engines[place].connect(self._channel, self._clock())
