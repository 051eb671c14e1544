"""From a changed policy to the last engine's acknowledgement: ``python -m benchmarks.policy [--rounds 15] [--streams 1,8,64]``.

A real agent, and that many real policy clients of the engine side (each with its own thread and channel, 16 to a process), whose
scheduler swaps at once, being idle. Each round changes a field of a policy that selects all; measured are the times that the
agent reports for each engine (from the change in the store to its acknowledgement) and, at the caller, from the call to the last one.

The peer is gRPC itself: a server in this process sends a message of the same size to the same processes over as many streams, which
answer with one of an answer's size; the time to the last answer. The two take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from penstock.instrumentation.policy_client import PolicyClient
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.settings import Settings
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent import running_agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PER_PROCESS = 16
PUSH_BYTES, ANSWER_BYTES = 220, 40
_METHOD = "/benchmark.Echo/Watch"
_MS = 1e3
_DEADLINE = 60


def engines(endpoint: str, peer: str, first: int, count: int) -> None:
    """Be *count* engines until standard input ends."""
    clients = []
    for index in range(first, first + count):
        runtime = Runtime()
        settings = Settings(endpoint=endpoint, server=f"s{index}")
        runtime.configure(settings)
        runtime.identify(process="engine-core", key="0", role="decode", model="tiny")
        client = PolicyClient(runtime, settings, ("kv_load_failure",))
        client.start()
        clients.append(client)
    threading.Thread(target=asyncio.run, args=(_echo(peer, count),), daemon=True).start()
    sys.stdin.read()
    for client in clients:
        client.request_stop()


async def _echo(peer: str, count: int) -> None:
    answer = bytes(ANSWER_BYTES)

    async def one() -> None:
        async with grpc.aio.insecure_channel(peer, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.stream_stream(_METHOD)()
            await call.write(answer)
            while await call.read() is not grpc.aio.EOF:
                await call.write(answer)

    await asyncio.gather(*(one() for _ in range(count)))


class Broadcast(grpc.GenericRpcHandler):
    """The peer: sends to all streams at once and waits for all answers; runs on a loop of its own."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self.address = ""
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait(_DEADLINE)

    def service(self, _details: Any) -> Any:
        """Take a stream."""
        return grpc.stream_stream_rpc_method_handler(self._watch)

    async def _watch(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        inbox: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        answers = aiter(requests)
        await anext(answers)
        self._calls.append(inbox)
        while True:
            answered = await inbox.get()
            yield bytes(PUSH_BYTES)
            await anext(answers)
            answered.set_result(None)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        started.set()
        await server.wait_for_termination()

    def wait_for(self, streams: int) -> None:
        """Wait until so many streams are there."""
        end = time.monotonic() + _DEADLINE
        while len(self._calls) < streams:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._calls)} of {streams} streams of the peer came")
            time.sleep(0.01)

    def round(self) -> float:
        """Return the seconds from a message to the last answer."""

        async def all_of_them() -> None:
            answers = [self._loop.create_future() for _ in self._calls]
            for inbox, answer in zip(self._calls, answers, strict=True):
                inbox.put_nowait(answer)
            await asyncio.gather(*answers)

        began = time.perf_counter()
        asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(_DEADLINE)
        return time.perf_counter() - began


@contextmanager
def processes(endpoint: str, peer: str, streams: int) -> Iterator[None]:
    """Run *streams* engines."""
    with ExitStack() as ended:
        for first in range(0, streams, PER_PROCESS):
            count = min(PER_PROCESS, streams - first)
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.policy",
                    "--engines",
                    endpoint,
                    peer,
                    str(first),
                    str(count),
                ],
                stdin=subprocess.PIPE,
            )
            ended.callback(child.wait, 20)
            ended.callback(child.stdin.close)  # type: ignore[union-attr]
        yield


def change(stub: AdminStub, tokens: int) -> tuple[float, list[float]]:
    """Change the policy; return the seconds to the last acknowledgement, and the agent's seconds for each engine."""
    manifest = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": {"name": "benchmark"},
        "spec": {"kvLoadFailure": {"action": "auto", "maxRecomputeTokens": tokens}},
    }
    began = time.perf_counter()
    applied = stub.ApplyPolicy(
        admin.ApplyPolicyRequest(manifest_json=json.dumps(manifest), author="benchmark"), timeout=_DEADLINE
    )
    request = admin.WatchRolloutRequest(store_generation=applied.store_generation)
    request.timeout.FromSeconds(_DEADLINE)
    *_, last = stub.WatchRollout(request, timeout=_DEADLINE)
    took = time.perf_counter() - began
    wrong = [engine for engine in last.engines if engine.state != "acknowledged"]
    if wrong:
        raise RuntimeError(f"{len(wrong)} engines did not acknowledge, the first: {wrong[0]}")
    return took, [engine.took.ToNanoseconds() / 1e9 for engine in last.engines]


def _connected(stub: AdminStub, streams: int) -> None:
    end = time.monotonic() + _DEADLINE
    while True:
        applied = stub.ApplyPolicy(
            admin.ApplyPolicyRequest(
                manifest_json=json.dumps(
                    {
                        "apiVersion": "penstock.dev/v1alpha1",
                        "kind": "TransferPolicy",
                        "metadata": {"name": "benchmark"},
                        "spec": {"kvLoadFailure": {"action": "fail"}, "selector": {"matchLabels": {}}},
                    }
                ),
                author="benchmark",
                dry_run=True,
                all=True,
            ),
            timeout=_DEADLINE,
        )
        if len(applied.engines) >= streams:
            return
        if time.monotonic() > end:
            raise TimeoutError(f"{len(applied.engines)} of {streams} engines subscribed")
        time.sleep(0.1)


def measure(streams: int, rounds: int) -> str:
    """Return a row of the table."""
    took: list[float] = []
    each: list[float] = []
    raw: list[float] = []
    broadcast = Broadcast()
    with (
        running_agent() as agent,
        processes(agent.listen, broadcast.address, streams),
        grpc.insecure_channel(agent.admin) as channel,
    ):
        stub = AdminStub(channel)
        broadcast.wait_for(streams)
        _connected(stub, streams)
        change(stub, 1)
        broadcast.round()
        for number in range(rounds):
            last, engines_took = change(stub, 1000 + number)
            took.append(last)
            each += engines_took
            raw.append(broadcast.round())
    cuts = statistics.quantiles(each, n=100, method="inclusive")
    last, peer = statistics.median(took), statistics.median(raw)
    return f"| {streams} | {cuts[49] * _MS:.1f} | {cuts[98] * _MS:.1f} | {last * _MS:.1f} | {peer * _MS:.1f} | {last / peer:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--streams", default="1,8,64")
    parser.add_argument(
        "--engines", nargs=4, metavar=("ENDPOINT", "PEER", "FIRST", "COUNT"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.engines:
        endpoint, peer, first, count = options.engines
        engines(endpoint, peer, int(first), int(count))
        return
    print("| engines | p50 ms | p99 ms | to the last one ms | gRPC broadcast ms | ratio |")
    print("|---|---|---|---|---|---|")
    for streams in options.streams.split(","):
        print(measure(int(streams), options.rounds), flush=True)


if __name__ == "__main__":
    main()
