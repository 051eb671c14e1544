"""An agent's real policy feed and real policy clients in one thread, joined by links on which everything goes wrong.

Nothing runs by itself: a test moves the clock, carries messages and breaks links. Only the wire is made up: bytes wait in two
queues for each stream, as they would in gRPC, until the test delivers them.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.errors import ContractError, HeldError
from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Target
from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.manifest.merge import effective_schedule
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.transport import StreamEnd
from penstock.instrumentation.transport.stream import Message, Tag
from penstock.proto.v1.policy_pb2 import Push, Report

from tests.support.policy.clients import make_client

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.agent.policy.distribution.subscriber import Subscriber

START = 1_800_000_000.0
HELLO = 10.0
"""Seconds after which the service ends a stream without a Subscribe."""


class InlineExecutor(ThreadPoolExecutor):
    """Runs work at once on the calling thread, so that nothing happens beside the test."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  (it is the caller's)
            done.set_exception(error)
        return done


@dataclass(eq=False)
class Link:
    """One stream: what the engine's client holds, and what the agent's service would.

    Attributes:
        up: reports on their way, serialized.
        down: pushes on their way, serialized, with the number of the state that they were made of.
        at_engine: the engine's end is open.
        at_agent: the agent's end is open.
        subscriber: the agent's, once the Subscribe has arrived.
        taken: nonce of the newest push that the engine has taken.

    """

    engine: SimulatedEngine
    born: float
    up: list[bytes] = field(default_factory=list)
    down: list[tuple[bytes, int]] = field(default_factory=list)
    at_engine: bool = True
    at_agent: bool = True
    subscriber: Subscriber | None = None
    taken: int = 0

    @property
    def backlog(self) -> int:
        """How many reports wait."""
        return len(self.up)

    def send(self, report: bytes) -> None:
        """Queue a report."""
        self.up.append(report)
        self.engine.answers += Report.FromString(report).WhichOneof("message") in {"ack", "nack"}

    def close(self) -> None:
        """End the stream from the engine's side; the agent learns of it later."""
        self.at_engine = False


class SimulatedEngine:
    """An EngineCore: a real runtime, policy holder and policy client, without a thread.

    Attributes:
        state: number of the state of which the last push was made that it took.
        answers: pushes that it has answered.
        partitioned: it cannot reach the agent.
        ahead: seconds by which its clock has run ahead of the agent's.

    """

    def __init__(self, world: World, name: str, labels: dict[str, str], fields: tuple[str, ...]) -> None:
        self.key = EngineKey("", name)
        self.target = Target(self.key, "tiny", labels)
        self.fields = fields
        self.state = 0
        self.answers = 0
        self.partitioned = False
        self.ahead = 0.0
        self._world = world
        self.start()

    def start(self) -> None:
        """Begin a new life of the process."""
        settings = Settings(endpoint="unix:///nowhere", labels=dict(self.target.labels))
        self.runtime = Runtime()
        # Without a configuration nothing is sent, and no exporter starts; the client has the settings that it needs.
        self.runtime.emit_event = lambda *_args, **_kwargs: None
        self.runtime.identify(process="engine-core", key=self.key.engine, model="tiny", vllm_version="0")
        self.client = make_client(
            self.runtime, settings, self.fields, self.clock, lambda *_: self._world.dial(self)
        )

    def clock(self) -> float:
        """Seconds of its monotonic clock."""
        return self._world.clock() + self.ahead

    def tick(self) -> None:
        """Do what the client's thread does when it wakes up."""
        self.client._tick(self._world.clock())

    def hear(self, message: Message) -> None:
        """Take a message from the client's inbox."""
        self.client._handle(message)
        self.tick()

    @property
    def hash(self) -> str:
        """The hash in force, or held back by the kill switch."""
        return self.client._applier.hash


class World:
    """One agent, its engines and the links between them."""

    def __init__(self) -> None:
        self.now = START
        self.state = 0
        self.links: list[Link] = []
        self.engines: list[SimulatedEngine] = []
        self.admitted: dict[EngineKey, set[str]] = {}
        self.directory = Path(tempfile.mkdtemp(prefix="ps-world-"))
        self._runner = asyncio.Runner()
        self._runner.get_loop().set_default_executor(InlineExecutor(1))
        self.up = False
        self.start_agent()

    def clock(self) -> float:
        """Seconds of the agent's wall clock."""
        return self.now

    def close(self) -> None:
        """Leave nothing behind."""
        if self.up:
            self.kill_agent()
        self._runner.close()
        shutil.rmtree(self.directory)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a call of the store to its end, and note what it admits."""
        try:
            return self._runner.run(work)
        finally:
            self.note_admitted()

    # The agent

    def start_agent(self) -> None:
        """Start it on what is on the disk."""
        self.database = PolicyDatabase.open(self.directory)
        self.store = PolicyStore(self.database, clock=self.clock, steady=self.clock)
        self.pauses = Pauses(self.database, clock=self.clock, steady=self.clock)
        self.orders = OrderStore(self.database, clock=self.clock, steady=self.clock)
        self.feed = PolicyFeed(self.store, self.pauses, self.orders, clock=self.clock)
        self.up = True

    def kill_agent(self) -> None:
        """End it without a word: it closes nothing but its files, as the kernel would."""
        self.database.close()
        self.up = False
        for link in self.links:
            link.at_agent = False
            link.up.clear()

    def take_up(self, link: Link, index: int = 0) -> None:
        """Deliver a report of a link to the agent, the oldest or that at *index*, as the service does."""
        report = Report.FromString(link.up.pop(index))
        if link.subscriber is not None:
            try:
                self.feed.on_report(link.subscriber, report)
            except ContractError:
                self.end_at_agent(link)
        elif report.WhichOneof("message") == "subscribe":
            try:
                link.subscriber = self.feed.add_stream(report.subscribe)
            except HeldError:
                self.end_at_agent(link)
        else:
            self.end_at_agent(link)

    def end_at_agent(self, link: Link) -> None:
        """Let the agent see that a stream has ended, or end it."""
        if link.at_agent and link.subscriber is not None:
            self.feed.end_stream(link.subscriber)
        link.at_agent = False
        link.up.clear()

    def pump(self, link: Link) -> None:
        """Do what the service's task of a stream does when it wakes up."""
        subscriber = link.subscriber
        if subscriber is None or not link.at_agent:
            return
        while self.feed.is_current(subscriber):
            push = self.feed.next_push(subscriber)
            if push is None:
                return
            link.down.append((push, self.state))
        self.end_at_agent(link)

    # The engines

    def add(self, name: str, labels: dict[str, str], fields: tuple[str, ...]) -> SimulatedEngine:
        """Start an engine."""
        engine = SimulatedEngine(self, name, labels, fields)
        self.engines.append(engine)
        self.note_admitted()
        return engine

    def dial(self, engine: SimulatedEngine) -> Any:
        """Open a stream for an engine; where the agent is out of reach, one that is dead."""
        link = Link(engine, self.now)
        link.at_agent = self.up and not engine.partitioned
        self.links.append(link)
        return link

    def take_down(self, link: Link, index: int = 0) -> None:
        """Deliver a push of a link, the oldest or that at *index*; one that is taken must not be of an older state than the last."""
        body, state = link.down.pop(index)
        engine, push = link.engine, Push.FromString(body)
        before = engine.answers
        engine.hear(Message(Tag.ANSWER, link, push))
        if engine.answers > before:
            assert link.at_engine, "a push of a stream that had ended came into force"
            assert state >= engine.state, "an older state came into force"
            engine.state = state
            link.taken = push.nonce

    def end_at_engine(self, link: Link) -> None:
        """Let the engine see that a stream has ended; pushes that were under way come behind it."""
        link.at_engine = False
        link.engine.hear(Message(Tag.ENDED, link, StreamEnd("UNAVAILABLE", "gone")))

    # What holds

    def note_admitted(self) -> None:
        """Remember what the present policies allow each engine now and later; it is a new state."""
        self.state += 1
        if not self.up:
            return
        manifests = [policy.manifest for policy in self.store.policies()]
        for engine in self.engines:
            steps = effective_schedule(manifests, engine.target, datetime.fromtimestamp(self.now, UTC))
            self.admitted.setdefault(engine.key, {""}).update(step.merged.hash for step in steps)

    def pass_time(self, seconds: float) -> None:
        """Move all clocks, and let every engine look at its own."""
        self.now += seconds
        self.note_admitted()
        for engine in self.engines:
            engine.tick()

    def turn(self) -> None:
        """Let everything that is under way arrive, once."""
        for link in list(self.links):
            if not link.at_engine or (link.subscriber is None and self.now - link.born >= HELLO):
                self.end_at_agent(link)
            while link.up and link.at_agent:
                self.take_up(link)
            self.pump(link)
            while link.down:
                self.take_down(link)
            if not link.at_agent and link.at_engine:
                self.end_at_engine(link)
        self.links = [link for link in self.links if link.at_engine or link.at_agent]

    def pump_all(self) -> None:
        """Do what the service does after a change."""
        for link in list(self.links):
            self.pump(link)
