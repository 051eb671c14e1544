"""What the page costs: ``make bench ONLY=page``.

A real agent, 256 engines with 100 peers each, and ten tabs that read all they are sent, by turns with the same agent without a
tab. Measured are the agent's CPU, the largest message, a scrape, and an engine's event from its send to its acknowledgement.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Budget, Row, Section, Spread, against
from benchmarks.harness.thread_time import cpu_seconds
from tests.support.agent.agent import running_agent
from tests.support.agent.batches import add_transfers, transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.page.addresses import page_of
from tests.support.page.tab import Tab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness.interleave import Run
    from tests.support.agent.agent import AgentProcess

AREA: Final = "page"
TITLE: Final = "The page"
MEANING: Final = (
    "The page in many tabs must not harm what it shows: what the tabs add to the agent's CPU, and what "
    "they do to a scrape and to an acknowledgement."
)
_NOTES: Final = (
    "One agent, 256 simulated engines with 100 peers each, ten events a second. *Ten tabs*: open for the whole turn, all read at once what they are sent. The peer is the same agent without a tab, by turns.",
)
_ENGINES, _QUICK_ENGINES = 256, 32
_PEERS: Final = 100
_TABS: Final = 10
_ROUNDS, _QUICK_ROUNDS = 5, 3
_TURN_SECONDS, _QUICK_TURN_SECONDS = 60.0, 12.0
_EVENT_SECONDS: Final = 0.1
_CPU_BUDGET: Final = Budget("the page: 256 engines x 100 peers x 10 tabs, % of a core", 5)
_SIZE_BUDGET: Final = Budget("the page's largest message, KiB", 64)
_WITHOUT: Final = "without a tab"
_MS: Final = 1e3


class _Turn:
    """What one turn has shown.

    Attributes:
        cpu: % of a core.
        largest: bytes of a message.

    """

    def __init__(self) -> None:
        self.cpu = self.scrape = self.acknowledged = 0.0
        self.largest = 0


def measure(run: Run) -> Section:
    """Measure the area."""
    engines = _QUICK_ENGINES if run.quick else _ENGINES
    seconds = _QUICK_TURN_SECONDS if run.quick else _TURN_SECONDS
    with running_agent(["--page=127.0.0.1:0", "--memory-limit=1GiB"]) as agent, ExitStack() as stack:
        connected = [stack.enter_context(_engine(agent, number)) for number in range(engines)]
        found = take_turns(
            {
                "tabs": lambda: _with_tabs(agent, connected[0], seconds),
                "none": lambda: _turn(agent, connected[0], seconds),
            },
            _QUICK_ROUNDS if run.quick else _ROUNDS,
            run.say,
        )
    ours, theirs = found["tabs"], found["none"]
    # What the tabs add, which is what the budget is about; the agent itself has its own.
    added = [max(tabs.cpu - none.cpu, 0.0) for tabs, none in zip(ours, theirs, strict=True)]
    group = f"{engines} engines x {_PEERS} peers x {_TABS} tabs"
    budgeted = engines == _ENGINES
    largest = max(each.largest for each in ours) / 1024
    rows = [
        Row("CPU that the tabs add, % of a core", "%", Spread.of(added), group, budget=_CPU_BUDGET if budgeted else None),
        against("CPU of the agent", "%", [each.cpu for each in ours], _WITHOUT, [each.cpu for each in theirs], group=group),
        Row("the largest message", "KiB", Spread.one(largest), group, budget=_SIZE_BUDGET if budgeted else None),
        against("a scrape, over HTTP", "ms", [each.scrape for each in ours], _WITHOUT, [each.scrape for each in theirs], group=group),
        against(
            "an event, from send to acknowledgement", "ms", [each.acknowledged for each in ours], _WITHOUT,
            [each.acknowledged for each in theirs], group=group,
        ),
    ]  # fmt: skip
    return Section(AREA, TITLE, _NOTES, rows)


def _engine(agent: AgentProcess, number: int) -> FakeEngine:
    """Return an engine that has moved something from each of its peers, once it is entered."""
    engine = FakeEngine(agent.listen, server=f"decode-{number}", engine="0")
    engine.connect()
    peers = [f"10.{peer}.0.1:5600" for peer in range(_PEERS)]
    batch = add_transfers(Batch(), [f"r-{number}-{peer}" for peer in range(_PEERS)])
    first = len(batch.strings)
    batch.strings.extend(peers)
    now = time.time_ns()
    for peer in range(_PEERS):
        batch.transfers.peer[peer] = first + peer
        batch.transfers.end_time_unix_nano[peer] = now
    engine.publish_batch(batch)
    engine.snapshot(
        Snapshot(time_unix_nano=now, peers=[{"peer": {"address": peer}, "connected": True} for peer in peers])
    )
    return engine


def _with_tabs(agent: AgentProcess, engine: FakeEngine, seconds: float) -> _Turn:
    """Return a turn with tabs, from the first screen on."""
    with ExitStack() as stack:
        tabs = [stack.enter_context(Tab(page_of(agent), patience=10 * seconds)) for _ in range(_TABS)]
        # Each reads from its first message on: one that waits for the others is let go as a slow one.
        begun = [threading.Event() for _ in tabs]
        readers = [
            threading.Thread(target=_read, args=each, daemon=True) for each in zip(tabs, begun, strict=True)
        ]
        for reader in readers:
            reader.start()
        if not all(each.wait(10 * seconds) for each in begun):
            raise RuntimeError("a tab has no screen with peers; is the agent overloaded?")
        turn = _turn(agent, engine, seconds)
        for tab in tabs:
            tab.leave()
        for reader in readers:
            reader.join()
        turn.largest = max(each.size for tab in tabs for each in [*tab.seen])
        return turn


def _read(tab: Tab, begun: threading.Event) -> None:
    tab.until("screen", lambda screen: screen["peers"]["total"])
    begun.set()
    while tab.next() is not None:
        pass


def _turn(agent: AgentProcess, engine: FakeEngine, seconds: float) -> _Turn:
    """Return what the agent costs in *seconds* of ten events a second, and how long an event and a scrape take."""
    assert agent.process is not None
    turn, took = _Turn(), []
    before, began = cpu_seconds(agent.process.pid), time.monotonic()
    for number in _paced(seconds):
        sent = time.perf_counter()
        engine.publish(transfer_failure(f"event-{began}-{number}", time_ns=time.time_ns()))
        took.append(time.perf_counter() - sent)
    turn.cpu = (cpu_seconds(agent.process.pid) - before) / (time.monotonic() - began) * 100
    turn.acknowledged = Spread.of(took).median * _MS
    scrapes = []
    for _ in range(3):
        sent = time.perf_counter()
        agent.get("/metrics")
        scrapes.append(time.perf_counter() - sent)
    turn.scrape = Spread.of(scrapes).median * _MS
    return turn


def _paced(seconds: float) -> Iterator[int]:
    """Yield numbers, ten a second, for *seconds*."""
    began, number = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        yield number
        number += 1
        time.sleep(max(0.0, began + number * _EVENT_SECONDS - now))
