"""The real admin service and policy feed, on a loop in a thread, over a journal that a test fills.

Synchronous code (a command line, a blocking client) can talk to it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.admin.lookups.context import AgentContext
from penstock.agent.admin.lookups.engine_counters import compared_counts
from penstock.agent.admin.lookups.retirement import Retirement
from penstock.agent.admin.service import AdminService
from penstock.agent.journal.journal import Journal
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.model import EngineKey, Source
from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.distribution.service import PolicyFeedService
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.rollouts.leader import RolloutLeader
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from penstock.agent.server.page_tokens import PageTokens, ServedPage
from penstock.agent.sources.registry import Registry
from penstock.proto.v1.admin_pb2_grpc import AdminStub, add_AdminServicer_to_server
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.policy_pb2 import OrderRefusal, Report
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.policy.feed import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from penstock.agent.stalls import Stall
    from penstock.proto.v1.admin_pb2 import AgentStatus
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.policy_pb2 import Push, StackDump

_DEADLINE = 60.0


class AdminHarness:
    """What :func:`running_admin` yields.

    Attributes:
        address: of the admin service.
        stub: a blocking client of it.
        heeding: connected sources report the kill switch at once; False: the test reports it by snapshots.

    """

    def __init__(self, directory: Path) -> None:
        self.address = f"unix://{directory}/admin.sock"
        self.heeding = True
        self._feed_address = f"unix://{directory}/feed.sock"
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._answering: list[asyncio.Task[None]] = []
        self._engines: list[Engine] = []
        self._sequences: dict[int, int] = {}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run *work* on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE)

    def source(
        self,
        engine: str = "0",
        *,
        server: str = "",
        process: str = "engine-core",
        epoch: int = 0,
        **fields: Any,
    ) -> Source:
        """Connect a source; its epoch follows from what it is, unless it is given."""
        key = EngineKey(server, engine)
        epoch = epoch or abs(hash((key, process))) | 1
        fields = {"role": "decode", "model": "tiny", "labels": {"role": "decode"}, "pid": 42, **fields}
        source = Source(epoch=epoch, key=key, process=process, **fields)

        async def connect() -> None:
            self.registry.connect(source, await self.journal.open_source(source))

        self.run(connect())
        return source

    def disconnect(self, source: Source) -> None:
        """End the stream of *source*."""

        async def end() -> None:
            self.registry.disconnect(source.epoch)

        self.run(end())

    def append(self, source: Source, *events: Event, batch: Batch | None = None) -> None:
        """Log a batch of *events*, or *batch*, as the next one of *source*."""
        batch = batch or Batch()
        batch.events.extend(events)
        batch.epoch = source.epoch
        batch.seq = self._sequences[source.epoch] = self._sequences.get(source.epoch, 0) + 1
        self.run(self.journal.append(source, batch, batch.SerializeToString()))

    def snapshot(self, source: Source, snapshot: Snapshot) -> None:
        """Take a snapshot of *source*."""

        async def take() -> None:
            self.registry.snapshot(source.epoch, snapshot)

        self.run(take())

    def engine(
        self,
        engine: str = "0",
        *,
        refuse: Callable[[Push], str] = lambda _: "",
        refuse_drills: str = "",
        supported: tuple[str, ...] = (),
        faults_allowed: bool = False,
        stacks: StackDump | None = None,
        **labels: str,
    ) -> Engine:
        """Subscribe an engine that answers each push: refuses with what *refuse* says, else acknowledges.

        With *refuse_drills* none of the drills holds in it. To a question for its stacks it answers *stacks*, if given.
        """
        subscriber = Engine(self._feed_address, engine, **labels)
        self._engines.append(subscriber)

        async def answer() -> None:
            while True:
                push = await subscriber._stream.read()
                if push.HasField("stacks") and stacks is not None:
                    stacks.id = push.stacks.id
                    await subscriber.report(Report(stacks=stacks))
                error = refuse(push)
                if error:
                    await subscriber.nack(push, error, "kvLoadFailure.action")
                    continue
                drills = push.drills if refuse_drills else ()
                refused = [OrderRefusal(id=drill.id, error=refuse_drills) for drill in drills]
                await subscriber.ack(push, refused_orders=refused)

        async def begin() -> None:
            await subscriber.connect(supported_fields=supported, faults_allowed=faults_allowed)
            self._answering.append(asyncio.ensure_future(answer()))
            while not ((known := self.feed.subscriber(subscriber.key)) and known.settled):  # noqa: ASYNC110  (bounded by run)
                await asyncio.sleep(0.005)

        self.run(begin())
        return subscriber

    def lead(self) -> None:
        """Let the leader of roll-outs look once."""
        self.run(self.rollouts.look())

    def hang_up(self, engine: Engine) -> None:
        """Take an engine's stream away."""

        async def end() -> None:
            await engine.disconnect()
            while (known := self.feed.subscriber(engine.key)) and known.connected:  # noqa: ASYNC110  (bounded by run)
                await asyncio.sleep(0.005)

        self.run(end())

    async def _start(self) -> None:
        # The clock that engines are retired by.
        self.now = 0.0
        self.stalls: dict[EngineKey, tuple[Stall, ...]] = {}
        self.ended_stalls: dict[EngineKey, tuple[Stall, ...]] = {}
        self.pages: dict[str, Callable[[], bytes]] = {}
        self.journal = Journal.open(self._directory)
        self.registry = Registry(time.time_ns)
        self.aggregator = Aggregator()
        self.journal.on_commit(lambda _, source, contents: self.aggregator.apply(source, contents))
        self.journal.on_commit(
            lambda _, source, contents: self.registry.committed(source.epoch, contents.batch)
        )
        self._database = PolicyDatabase.open(self._directory)
        self.store, self.pauses = PolicyStore(self._database), Pauses(self._database)
        self.orders = OrderStore(self._database)
        self.feed = PolicyFeed(self.store, self.pauses, self.orders)
        self.pauses.subscribe(self._heed)
        self.retirement = Retirement(
            self.journal, self.registry, self.aggregator, self.feed, self._database, clock=lambda: self.now
        )
        # It looks when a test says so.
        self.rollouts = RolloutLeader(
            self.store,
            lambda: [subscriber.target for subscriber in self.feed.subscribers()],
            lambda: compared_counts(self.aggregator),
            refusing=self.feed.refusing,
        )
        self.service = AdminService(
            AgentContext(
                journal=self.journal,
                registry=self.registry,
                aggregator=self.aggregator,
                store=self.store,
                pauses=self.pauses,
                orders=self.orders,
                feed=self.feed,
                retirement=self.retirement,
                rollouts=self.rollouts,
                state_dir=self._directory,
                pages=self.pages,
                statuses=(_describe,),
                page=_page_tokens(),
                stalls=lambda: self.stalls,
                ended_stalls=lambda: self.ended_stalls,
            )
        )
        self._servers = [grpc.aio.server(), grpc.aio.server()]
        add_AdminServicer_to_server(self.service, self._servers[0])
        self._servers[1].add_generic_rpc_handlers((PolicyFeedService(self.feed).handler(),))
        for server, address in zip(self._servers, (self.address, self._feed_address), strict=True):
            server.add_insecure_port(address)
            await server.start()

    def _heed(self) -> None:
        """Report the kill switch of every connected source."""
        for live in self.registry.sources() if self.heeding else ():
            if live.connected:
                snapshot = live.snapshot or Snapshot()
                snapshot.paused = self.pauses.is_paused(live.source.key)
                self.registry.snapshot(live.source.epoch, snapshot)

    async def _stop(self) -> None:
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        for engine in self._engines:
            await engine.disconnect()
        self.service.close()
        self.feed.close()
        for server in self._servers:
            await server.stop(1)
        self._database.close()
        await self.journal.close()

    def start(self) -> None:
        """Serve."""
        self._thread.start()
        self.run(self._start())
        self._channel = grpc.insecure_channel(self.address)
        self.stub = AdminStub(self._channel)

    def stop(self) -> None:
        """End."""
        self._channel.close()
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


@contextmanager
def running_admin(directory: Path) -> Iterator[AdminHarness]:
    """Serve Admin on a unix socket below *directory*."""
    harness = AdminHarness(directory)
    harness.start()
    try:
        yield harness
    finally:
        harness.stop()


def _page_tokens() -> PageTokens:
    """Return tokens of a page, as if it were served."""
    tokens = PageTokens()
    tokens.page = ServedPage("http://127.0.0.1:9465/", by_token=True, writes=True)
    return tokens


def _describe(status: AgentStatus) -> None:
    status.metrics_address = "127.0.0.1:1"
