"""Simulated engine processes that send to an agent over real gRPC, as many as it takes.

One stream each, one batch in flight, a batch every 200 ms at most and a snapshot every second, as the exporter of an engine with
failures does (a healthy one sends a batch a second). They send a steady rate of events (a wait's start, its end and the request's
end for each request), or as many full batches as the agent acknowledges, of what real engines send (:mod:`benchmarks.load.mixes`).
The times of acknowledgements are measured in the sender, from the send.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import statistics
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.journal.database.schema import FILE
from penstock.instrumentation.telemetry.batcher import URGENT_DELAY
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1.common_pb2 import ROLE_DECODE
from penstock.proto.v1.ingest_pb2 import Ack, Batch, Hello
from penstock.proto.v1.snapshot_pb2 import Snapshot

from benchmarks.load.mixes import FULL, MIXES, decode_events, request_id

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.agent import AgentProcess

PEERS = 8
_METHOD = "/penstock.v1.Ingest/Publish"
_MIB = 1 << 20
# Batches of a mix: with fewer, the same requests would come again and again.
_DIFFERENT = 64


@dataclass
class Result:
    """What a number of sources gave; times in milliseconds, CPU in % of a core, memory in MiB."""

    sources: int
    acks: list[float] = field(default_factory=list)
    memory: float = 0.0
    cpu: float = 0.0
    bytes_per_entry: float = 0.0
    scrape: float = 0.0
    throughput: float = 0.0
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class Intake:
    """The agent's intake: entries, wall and CPU seconds, and bytes on disk."""

    entries: int
    seconds: float
    cpu_seconds: float
    state_bytes: int

    @property
    def per_core(self) -> float:
        """Entries a second of CPU of all the agent's threads."""
        return self.entries / self.cpu_seconds


@cache
def full_batches(mix: str) -> list[bytes]:
    """Return full batches of a mix without sequence numbers; cached, because building takes longer than sending."""
    rng = random.Random(mix)
    return [MIXES[mix](rng).SerializeToString() for _ in range(_DIFFERENT)]


async def flood(agent: AgentProcess, sources: int, seconds: float, mix: str) -> Intake:
    """Send *agent* as many full batches of *mix* as it acknowledges."""
    full_batches(mix)
    async with grpc.aio.insecure_channel(agent.listen) as channel:
        senders = [Sender(number, Result(sources)) for number in range(sources)]
        for sender in senders:
            await sender.connect(channel)
        size, cpu, begun = size_of(agent), own(agent, "process_cpu_seconds_total"), time.monotonic()
        counts = await asyncio.gather(*(each.flood(begun + seconds, mix) for each in senders))
        took = time.monotonic() - begun
        return Intake(sum(counts), took, own(agent, "process_cpu_seconds_total") - cpu, size_of(agent) - size)


class Sender:
    """One simulated engine process: its stream and its pending events."""

    def __init__(self, number: int, result: Result) -> None:
        self.epoch = random.getrandbits(63) + 1
        self._number = number
        self._result = result
        self._seq = 0
        self._requests = 0
        self._rng = random.Random(number)
        self._events: list[Event] = []
        self._call: Any = None

    async def connect(self, channel: grpc.aio.Channel) -> None:
        """Send Hello and wait for the greeting."""
        self._call = channel.stream_stream(_METHOD, response_deserializer=Ack.FromString)()
        hello = Hello(
            schema_version=SCHEMA_VERSION,
            key={"engine": str(self._number % 128)},
            process="engine-core" if self._number < 128 else "worker",  # noqa: PLR2004
            model="tiny",
            role=ROLE_DECODE,
            start_time_unix_nano=time.time_ns(),
        )
        await self._call.write(Batch(epoch=self.epoch, hello=hello).SerializeToString())
        await self._call.read()

    async def trickle(self, per_second: float, until: float) -> int:
        """Emit events at a steady rate, sent as the exporter does; returns how many were acknowledged."""
        sent, snapshot_at = 0, time.monotonic() + random.random()
        await asyncio.sleep(random.random() * URGENT_DELAY)
        start = time.monotonic()
        while (now := time.monotonic()) < until:
            if now >= snapshot_at:
                snapshot_at = now + 1
                await self._call.write(Batch(epoch=self.epoch, snapshot=self._snapshot()).SerializeToString())
            due = int((now - start) * per_second) - sent
            if due:
                await self._publish(Batch(events=[self._event() for _ in range(due)]))
                sent += due
            await asyncio.sleep(max(URGENT_DELAY, 1 / per_second if not due else 0))
        return sent

    async def flood(self, until: float, mix: str = "samples") -> int:
        """Send full batches of *mix* one after the other; returns how many entries were acknowledged."""
        bodies = full_batches(mix)
        sent = 0
        while time.monotonic() < until:
            self._seq += 1
            # What follows is merged into it.
            head = Batch(epoch=self.epoch, seq=self._seq).SerializeToString()
            await self._send(head + bodies[(self._number + self._seq) % len(bodies)])
            sent += FULL
        return sent

    async def _publish(self, batch: Batch) -> None:
        self._seq += 1
        batch.epoch, batch.seq = self.epoch, self._seq
        body = batch.SerializeToString()
        begun = time.monotonic()
        await self._send(body)
        self._result.acks.append((time.monotonic() - begun) * 1e3)

    async def _send(self, body: bytes) -> None:
        await self._call.write(body)
        while (await self._call.read()).durable_watermark < self._seq:
            pass

    def _peer(self) -> str:
        return f"10.0.0.{self._requests % PEERS}:5600"

    def _event(self) -> Event:
        """Return the next event of consecutive decode requests, with ids like vLLM's."""
        if not self._events:
            self._requests += 1
            names = request_id(self._rng), request_id(self._rng)
            self._events = decode_events(names[0], self._peer(), time.time_ns(), names[1])[::-1]
        return self._events.pop()

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            time_unix_nano=time.time_ns(),
            in_flight=[{"channel": 1, "peer": {"address": f"10.0.0.{n}:5600"}, "count": 1} for n in range(PEERS)],
            engine={"model": "tiny", "kv_connector": "NixlConnector"},
        )  # fmt: skip


def size_of(agent: AgentProcess) -> int:
    """Return the bytes of the journal after a checkpoint of its write-ahead log."""
    with contextlib.closing(sqlite3.connect(f"file:{agent.state_dir / FILE}?mode=ro", uri=True)) as database:
        (pages,), (size,) = (
            database.execute(f"PRAGMA {word}").fetchone() for word in ("page_count", "page_size")
        )
    return int(pages) * int(size)


def own(agent: AgentProcess, name: str) -> float:
    """Return a metric without labels of the agent itself."""
    value = agent.metric(name)
    assert value is not None, name
    return value


def scrape(agent: AgentProcess) -> float:
    """Return how long a scrape takes, the median of five."""
    times = []
    for _ in range(5):
        begun = time.monotonic()
        assert agent.get("/metrics")[0] == 200  # noqa: PLR2004
        times.append((time.monotonic() - begun) * 1e3)
    return statistics.median(times)


async def load(agent: AgentProcess, result: Result, rate: float, seconds: float) -> None:
    """Run both loads on *agent* and fill in *result*."""
    async with grpc.aio.insecure_channel(agent.listen) as channel:
        senders = [Sender(number, result) for number in range(result.sources)]
        for sender in senders:
            await sender.connect(channel)
        await asyncio.gather(*(each.trickle(rate / len(senders), time.monotonic() + 2) for each in senders))
        result.acks.clear()
        size, cpu, begun = size_of(agent), own(agent, "process_cpu_seconds_total"), time.monotonic()
        counts = await asyncio.gather(
            *(each.trickle(rate / len(senders), begun + seconds) for each in senders)
        )
        took = time.monotonic() - begun
        result.cpu = 100 * (own(agent, "process_cpu_seconds_total") - cpu) / took
        result.memory = own(agent, "process_resident_memory_bytes") / _MIB
        result.bytes_per_entry = (size_of(agent) - size) / sum(counts)
        result.scrape = await asyncio.to_thread(scrape, agent)
        full_batches("engine")
        begun = time.monotonic()
        counts = await asyncio.gather(*(each.flood(begun + seconds / 4, "engine") for each in senders))
        result.throughput = sum(counts) / (time.monotonic() - begun)
        result.peak = own(agent, "process_resident_memory_bytes") / _MIB
