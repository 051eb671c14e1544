"""Simulated engines of many agents in one process, run as ``python -m``.

``python -m tests.support.fleet.engines COUNT ADDRESS…`` connects *COUNT* engines to each agent's socket: each says hello and
puts in force what its agent pushes, at once. A line of standard output for each push is ``AGENT ENGINE HASH SECONDS``: the
agent's number in the list, the hash in force and the monotonic clock. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import grpc
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1.common_pb2 import ROLE_DECODE
from penstock.proto.v1.ingest_pb2 import Batch, Hello
from penstock.proto.v1.ingest_pb2_grpc import IngestStub

from tests.support.policy.feed import Engine, hash_of


async def _hello(address: str, engine: str) -> None:
    """Be a connected source until cancelled."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = IngestStub(channel).Publish()
        hello = Hello(
            schema_version=SCHEMA_VERSION,
            key={"engine": engine},
            process="engine-core",
            pid=os.getpid(),
            start_time_unix_nano=time.time_ns(),
            penstock_version="test",
            vllm_version="0.32.0",
            model="tiny",
            role=ROLE_DECODE,
        )
        # An epoch is one process of an engine.
        await call.write(Batch(epoch=1 + int(engine), hello=hello))
        while await call.read() is not grpc.aio.EOF:
            pass


async def _obey(address: str, agent: int, engine: str) -> None:
    """Put in force what comes."""
    async with Engine(address, engine) as follower:
        while True:
            push = await follower.push_whenever()
            sys.stdout.write(f"{agent} {engine} {hash_of(push) or '-'} {time.monotonic()}\n")
            sys.stdout.flush()
            await follower.ack(push)


async def _run(count: int, addresses: list[str]) -> None:
    tasks = [
        asyncio.ensure_future(each)
        for agent, address in enumerate(addresses)
        for engine in map(str, range(count))
        for each in (_hello(address, engine), _obey(address, agent, engine))
    ]
    ending = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait({ending, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in done - {ending}:
        task.result()
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), sys.argv[2:]))
    os._exit(0)
