"""From a changed policy to the last engine's acknowledgement: ``make bench ONLY=policy``.

A real agent, and that many simulated engines: each has a stream of its own, and the engine side's own desk reads a push, puts it in force (at once: no
step is under way) and answers. Some share a process, whose loop is theirs: on its own machine each would have a core and more, and here all share two with the
agent. For 64 there is also the whole of the engine side for each, with its threads and exporter. Each round changes a field of a policy that selects all; measured are the times that the
agent reports for each engine (from the change in the store to its acknowledgement) and, at the caller, from the call to the last one.

The peer is gRPC itself: a server in this process sends a message of the same size to the same processes over as many streams, which
answer with one of an answer's size; the time to the last answer. The two take turns.

``python -m benchmarks.areas.policy KIND ENDPOINT PEER FIRST COUNT`` is a process of engines.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.policy.applier import PolicyApplier
from penstock.instrumentation.policy.client import METHOD, PolicyClient
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.transport.hello import engine_key, selector_labels
from penstock.proto import SCHEMA_VERSION
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.proto.v1.policy_pb2 import Push, Report, Subscribe

from benchmarks.harness.results import Budget, Row, Section, Spread, against
from tests.support.agent.agent import running_agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from benchmarks.harness.interleave import Run

AREA: Final = "policy"
TITLE: Final = "A policy on its way"
MEANING: Final = (
    "From `agentctl set-policy` to the acknowledgement of the last engine, beside a plain gRPC broadcast "
    "of the same size."
)
_NOTES: Final = (
    (
        "From a changed policy to the acknowledgement, with a real agent. A simulated engine is a stream on a loop and the engine side's own code that reads a push, puts it in force and answers; idle. "
        "*The whole engine side*: policy client and exporter with all their threads for each engine; 64 of these need 73 ms of CPU for a change, which is two thirds of what happens here, and on machines of their own would not wait for each other. *In force*: by the agent's clock, from the change in the store. "
        "*At the caller*: from the call of the Admin service, with the commit to disk, to the last answer of its watch. The peer sends a message of the same size to as many streams "
        "of the same processes. A busy engine is in its own section."
    ),
)
_STREAMS: Final = (1, 8, 64, 256)
_QUICK_STREAMS: Final = (1, 16)
_ROUNDS, _MOST_ROUNDS, _QUICK_ROUNDS = 400, 100, 25
"""The first is what it takes to know a p99; with more than so many engines as the budget has, the second will do."""
_OF_BUDGET: Final = 64
_BUDGET: Final = Budget("set-policy → in force on all of 64 simulated engines, p99", 50)
_PEER: Final = "gRPC broadcast"
PER_PROCESS, MOST_PROCESSES = 16, 8
PUSH_BYTES, ANSWER_BYTES = 220, 40
_METHOD = "/benchmark.Echo/Watch"
_FIELDS = ("kv_load_failure",)
SIMULATED, _WHOLE = "simulated", "whole"
_MS = 1e3
_DEADLINE = 60
_PATIENCE = 20


def _engine(endpoint: str, index: int) -> tuple[Runtime, Settings]:
    runtime = Runtime()
    runtime.identify(process="engine-core", key="0", role="decode", model="tiny")
    return runtime, Settings(endpoint=endpoint, server=f"s{index}")


def _applier(runtime: Runtime) -> PolicyApplier:
    return PolicyApplier(runtime.session, runtime.policy, runtime.emit_event, _FIELDS, faults_allowed=False)


def simulated(endpoint: str, peer: str, first: int, count: int) -> None:
    """Run *count* engines on one loop until stdin closes."""

    async def all_of_them() -> None:
        await asyncio.gather(
            _echo(peer, count), *(_policy_applier(endpoint, first + index) for index in range(count))
        )

    threading.Thread(target=asyncio.run, args=(all_of_them(),), daemon=True).start()
    sys.stdin.read()


async def _policy_applier(endpoint: str, index: int) -> None:
    runtime, settings = _engine(endpoint, index)
    applier = _applier(runtime)
    subscribe = Subscribe(
        schema_version=SCHEMA_VERSION,
        epoch=runtime.session.epoch,
        key=engine_key(runtime.identity, settings),
        labels=selector_labels(runtime.identity, settings),
        supported_fields=applier.sections,
    )
    async with grpc.aio.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.stream_stream(METHOD)()
        await call.write(Report(subscribe=subscribe).SerializeToString())
        while (body := await call.read()) is not grpc.aio.EOF:
            for report in (applier.apply(Push.FromString(body)), applier.tick()):
                if report is not None:
                    await call.write(report.SerializeToString())


def whole(endpoint: str, peer: str, first: int, count: int) -> None:
    """Run the engine side of *count* engines until stdin closes."""
    clients = []
    for index in range(first, first + count):
        runtime, settings = _engine(endpoint, index)
        runtime.configure(settings)
        client = PolicyClient(runtime.session, _applier(runtime), settings)
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
            call: Any = channel.stream_stream(_METHOD)()
            await call.write(answer)
            while await call.read() is not grpc.aio.EOF:
                await call.write(answer)

    await asyncio.gather(*(one() for _ in range(count)))


class Broadcast(grpc.GenericRpcHandler):
    """The peer: sends to all streams at once and waits for all answers, on a loop of its own."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self.address = ""
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait(_DEADLINE)

    def service(self, _details: Any) -> Any:
        """Handle a stream."""
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
        """Wait until this number of streams is connected."""
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
def processes(kind: str, endpoint: str, peer: str, streams: int) -> Iterator[None]:
    """Run *streams* engines of a kind."""
    share = max(PER_PROCESS, -(-streams // MOST_PROCESSES))
    with ExitStack() as ended:
        for first in range(0, streams, share):
            count = min(share, streams - first)
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.areas.policy",
                    kind,
                    endpoint,
                    peer,
                    str(first),
                    str(count),
                ],
                stdin=subprocess.PIPE,
            )
            ended.callback(_end, child)
        yield


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def change(stub: AdminStub, tokens: int, role: str = "") -> tuple[float, list[float]]:
    """Change the policy of all engines, or of those of a *role*.

    Return the seconds to the last acknowledgement, and the agent's seconds for each engine.
    """
    selector = {"selector": {"matchLabels": {"role": role}}} if role else {}
    manifest = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": {"name": "benchmark"},
        "spec": {**selector, "kvLoadFailure": {"action": "auto", "maxRecomputeTokens": tokens}},
    }
    began = time.perf_counter()
    applied = stub.ApplyPolicy(
        admin.ApplyPolicyRequest(manifest_json=json.dumps(manifest), author="benchmark", all=True),
        timeout=_DEADLINE,
    )
    request = admin.WatchRolloutRequest(
        store_generation=applied.store_generation, selector={"labels": f"role={role}" if role else ""}
    )
    request.timeout.FromSeconds(_DEADLINE)
    *_, last = stub.WatchRollout(request, timeout=_DEADLINE)
    took = time.perf_counter() - began
    wrong = [engine for engine in last.engines if engine.state != "acknowledged"]
    if wrong:
        raise RuntimeError(f"{len(wrong)} engines did not acknowledge, the first: {wrong[0]}")
    return took, [engine.took.ToNanoseconds() / 1e9 for engine in last.engines]


def wait_for_engines(stub: AdminStub, streams: int, role: str = "") -> None:
    """Wait until so many engines, of a *role* if it is given, have subscribed."""
    labels = {"role": role} if role else {}
    end = time.monotonic() + _DEADLINE
    while True:
        applied = stub.ApplyPolicy(
            admin.ApplyPolicyRequest(
                manifest_json=json.dumps(
                    {
                        "apiVersion": "penstock.dev/v1alpha1",
                        "kind": "TransferPolicy",
                        "metadata": {"name": "benchmark"},
                        "spec": {"kvLoadFailure": {"action": "fail"}, "selector": {"matchLabels": labels}},
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


@dataclass(frozen=True, slots=True)
class Round:
    """What one change took, in milliseconds: at the caller to the last one, each engine by the agent's clock, the peer."""

    last: float
    each: Sequence[float]
    peer: float


def rounds_with(kind: str, streams: int, rounds: int, say: Callable[[str], None]) -> list[Round]:
    """Return what *rounds* changes for *streams* engines of a kind took."""
    say(f"{streams} engines start ({kind})")
    broadcast = Broadcast()
    found = []
    with (
        running_agent(["--log-level=warning"]) as agent,
        processes(kind, agent.listen, broadcast.address, streams),
        grpc.insecure_channel(agent.admin) as channel,
    ):
        stub = AdminStub(channel)  # type: ignore[no-untyped-call]
        broadcast.wait_for(streams)
        wait_for_engines(stub, streams)
        change(stub, 1)
        broadcast.round()
        say(f"{rounds} changes")
        for number in range(rounds):
            last, each = change(stub, 1000 + number)
            found.append(Round(last * _MS, [took * _MS for took in each], broadcast.round() * _MS))
    return found


def measure(run: Run) -> Section:
    """Measure the area."""
    rows = []
    for streams in _QUICK_STREAMS if run.quick else _STREAMS:
        rounds = _ROUNDS if streams <= _OF_BUDGET else _MOST_ROUNDS
        found = rounds_with(SIMULATED, streams, _QUICK_ROUNDS if run.quick else rounds, run.say)
        group = f"{streams} engines" if streams > 1 else "1 engine"
        rows += _rows(group, found, _BUDGET if streams == _OF_BUDGET else None)
    if not run.quick:
        found = rounds_with(_WHOLE, _OF_BUDGET, _MOST_ROUNDS, run.say)
        rows += _rows(f"{_OF_BUDGET} engines, the whole engine side", found, None)
    return Section(AREA, TITLE, _NOTES, rows)


def _rows(group: str, found: Sequence[Round], budget: Budget | None) -> list[Row]:
    slowest = [max(each.each) for each in found]
    row = against(
        "at the caller, to the last engine",
        "ms",
        [each.last for each in found],
        _PEER,
        [each.peer for each in found],
        group=group,
    )
    everyone = [took for each in found for took in each.each]
    return [
        Row("in force, an engine, p50", "ms", Spread.of([statistics.median(each.each) for each in found]), group),
        # Those of a round are not independent, so there is no interval.
        Row("in force, an engine, p99", "ms", Spread.one(Spread.percentile(everyone, 99).median), group),
        Row(
            "in force on all, p99", "ms", Spread.percentile(slowest, 99), group,
            budget=budget,
        ),
        row,
    ]  # fmt: skip


def main() -> None:
    """Run as an engines process."""
    kind, endpoint, peer, first, count = sys.argv[1:]
    {SIMULATED: simulated, _WHOLE: whole}[kind](endpoint, peer, int(first), int(count))


if __name__ == "__main__":
    main()
