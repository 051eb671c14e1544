"""What the page costs: ``make bench ONLY=page``.

A real agent, 256 engines with 100 peers each, and ten tabs that read all they are sent, by turns with the same agent without a
tab. Measured are the agent's CPU with open tabs and that of opening them, the largest message, the age of what the tabs show, a
scrape, an engine's event from its send to its acknowledgement, and a policy from its change to the last of 64 engines that obey.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import grpc
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.proto.v1.common_pb2 import ROLE_PREFILL
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from benchmarks.areas.policy import SIMULATED, Broadcast, change, processes, wait_for_engines
from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Budget, Row, Section, Spread, against
from benchmarks.harness.thread_time import cpu_seconds
from benchmarks.load.tabs import Tabs
from tests.support.agent.agent import running_agent
from tests.support.agent.batches import add_transfers, transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.page.addresses import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness.interleave import Run
    from tests.support.agent.agent import AgentProcess

AREA: Final = "page"
TITLE: Final = "The page"
MEANING: Final = (
    "The page in many tabs must not harm what it shows: what the tabs add to the agent's CPU, and what "
    "they do to a scrape and to an acknowledgement."
)
_NOTES: Final = (
    (
        "One agent, 256 simulated engines with 100 peers each, ten events a second, and 64 more engines that only obey, with a change of their policy every three seconds. *Ten tabs*: open for the whole turn, in a process of their own, all read at once what they are sent; a turn begins some seconds after all of them have their first screen. "
        "*Opening*: the agent's CPU from before the first tab to the first screen of all ten with its peers and its verdict, divided by ten; most of it is what the first one needs. "
        "*Age*: of the oldest answer on the screen, as a tab sees it. The peer is the same agent without a tab, by turns. A scrape here has five times the series of its budget."
    ),
)
_ENGINES, _QUICK_ENGINES = 256, 32
_PEERS: Final = 100
_TABS: Final = 10
_OBEYING: Final = 64
_ROLE: Final = "decode"
# So many give the median an interval without the most extreme rounds.
_ROUNDS: Final = 9
# The agent saves its counters, and asks for a diagnosis of so many engines, about twice a minute: once a turn.
_TURN_SECONDS, _QUICK_TURN_SECONDS = 30.0, 12.0
_SETTLE_SECONDS: Final = 4.0
_EVENT_SECONDS: Final = 0.1
_EVENTS_PER_CHANGE: Final = 30
# At once: a stream each.
_FILLING: Final = 8
_CPU_BUDGET: Final = Budget("the page: 256 engines x 100 peers x 10 open tabs, % of a core", 5)
_SIZE_BUDGET: Final = Budget("the page's largest message, KiB", 64)
_EVENT_BUDGET: Final = Budget("acknowledgement beside ten tabs, p99", 20)
_POLICY_BUDGET: Final = Budget(
    "set-policy → in force on all of 64 engines beside ten tabs, the slowest of a turn", 50
)
_WITHOUT: Final = "without a tab"
_MS: Final = 1e3


class _Turn:
    """What one turn has shown.

    Attributes:
        cpu: % of a core, with the tabs open.
        opening: seconds of CPU, of all tabs.
        scrape: milliseconds.
        acknowledged: milliseconds of each event.
        in_force: milliseconds of each change of the policy, to the last engine.
        largest: bytes of a message.
        ages: seconds, of each message that tells how old the screen is.

    """

    def __init__(self) -> None:
        self.cpu = self.opening = self.scrape = 0.0
        self.acknowledged: list[float] = []
        self.in_force: list[float] = []
        self.largest = 0
        self.ages: list[float] = []


class _Fleet:
    """An agent with its engines.

    Attributes:
        one: an engine that has events.

    """

    def __init__(self, agent: AgentProcess, stub: AdminStub, one: FakeEngine) -> None:
        self.agent, self.stub, self.one = agent, stub, one
        self._changes = 0

    def change_policy(self) -> float:
        """Change the policy of those that obey; return the seconds to the last of them."""
        self._changes += 1
        return max(change(self.stub, 1000 + self._changes, _ROLE)[1])


def measure(run: Run) -> Section:
    """Measure the area."""
    engines = _QUICK_ENGINES if run.quick else _ENGINES
    seconds = _QUICK_TURN_SECONDS if run.quick else _TURN_SECONDS
    with _fleet(engines) as fleet:
        run.say(f"{engines} engines are there")
        found = take_turns(
            {"tabs": lambda: _with_tabs(fleet, seconds), "none": lambda: _turn(fleet, seconds)},
            _ROUNDS,
            run.say,
        )
    ours, theirs = found["tabs"], found["none"]
    # What the tabs add, which is what the budget is about; the agent itself has its own.
    added = [max(tabs.cpu - none.cpu, 0.0) for tabs, none in zip(ours, theirs, strict=True)]
    group = f"{engines} engines x {_PEERS} peers x {_TABS} tabs"
    budgeted = engines == _ENGINES
    largest = max(each.largest for each in ours) / 1024
    ages = [age for each in ours for age in each.ages]
    rows = [
        Row("CPU that open tabs add, % of a core", "%", Spread.of(added), group, budget=_CPU_BUDGET if budgeted else None),
        Row("CPU of opening ten tabs, for each", "s", Spread.of([each.opening / _TABS for each in ours]), group),
        against("CPU of the agent", "%", [each.cpu for each in ours], _WITHOUT, [each.cpu for each in theirs], group=group),
        Row("the largest message", "KiB", Spread.one(largest), group, budget=_SIZE_BUDGET if budgeted else None),
        Row("age of what the tabs show, p99", "s", Spread.one(Spread.percentile(ages, 99).median), group),
        against("a scrape, over HTTP", "ms", [each.scrape for each in ours], _WITHOUT, [each.scrape for each in theirs], group=group),
        against(
            "an event, from send to acknowledgement, p99", "ms", [_p99(each.acknowledged) for each in ours], _WITHOUT,
            [_p99(each.acknowledged) for each in theirs], group=group, budget=_EVENT_BUDGET if budgeted else None,
        ),
        against(
            f"a policy in force on all of {_OBEYING} engines, the slowest", "ms", [max(each.in_force) for each in ours], _WITHOUT,
            [max(each.in_force) for each in theirs], group=group, budget=_POLICY_BUDGET if budgeted else None,
        ),
    ]  # fmt: skip
    return Section(AREA, TITLE, _NOTES, rows)


def _p99(values: Sequence[float]) -> float:
    return Spread.percentile(values, 99).median


@contextmanager
def _fleet(engines: int) -> Iterator[_Fleet]:
    broadcast = Broadcast()
    with (
        ExitStack() as stack,
        running_agent(["--page=127.0.0.1:0", "--memory-limit=1GiB", "--log-level=warning"]) as agent,
        ThreadPoolExecutor(_FILLING) as pool,
    ):
        connected = list(pool.map(lambda number: _engine(agent, number), range(engines)))
        for each in connected:
            stack.callback(each.disconnect)
        stack.enter_context(processes(SIMULATED, agent.listen, broadcast.address, _OBEYING))
        stub = AdminStub(stack.enter_context(grpc.insecure_channel(agent.admin)))  # type: ignore[no-untyped-call]
        wait_for_engines(stub, _OBEYING, _ROLE)
        yield _Fleet(agent, stub, connected[0])


def _engine(agent: AgentProcess, number: int) -> FakeEngine:
    """Return a connected engine that has moved something from each of its peers."""
    engine = FakeEngine(agent.listen, server=f"server-{number}", engine="0", role=ROLE_PREFILL)
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


def _with_tabs(fleet: _Fleet, seconds: float) -> _Turn:
    """Return a turn with tabs, from some seconds after the first screen on, and what it took to open them."""
    assert fleet.agent.process is not None
    pid = fleet.agent.process.pid
    with Tabs(page_of(fleet.agent), _TABS, 10 * seconds) as tabs:
        before = cpu_seconds(pid)
        tabs.open()
        opening = cpu_seconds(pid) - before
        time.sleep(_SETTLE_SECONDS)
        turn = _turn(fleet, seconds)
        turn.opening = opening
        turn.largest, turn.ages = tabs.leave()
    return turn


def _turn(fleet: _Fleet, seconds: float) -> _Turn:
    """Return what the agent costs in *seconds* of ten events a second, and how long what it does takes."""
    assert fleet.agent.process is not None
    turn = _Turn()
    before, began = cpu_seconds(fleet.agent.process.pid), time.monotonic()
    for number in _paced(seconds):
        sent = time.perf_counter()
        fleet.one.publish(transfer_failure(f"event-{began}-{number}", time_ns=time.time_ns()))
        turn.acknowledged.append((time.perf_counter() - sent) * _MS)
        if number % _EVENTS_PER_CHANGE == _EVENTS_PER_CHANGE // 2:
            turn.in_force.append(fleet.change_policy() * _MS)
    turn.cpu = (cpu_seconds(fleet.agent.process.pid) - before) / (time.monotonic() - began) * 100
    sent = time.perf_counter()
    fleet.agent.get("/metrics")
    turn.scrape = (time.perf_counter() - sent) * _MS
    return turn


def _paced(seconds: float) -> Iterator[int]:
    """Yield numbers, ten a second, for *seconds*."""
    began, number = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        yield number
        number += 1
        time.sleep(max(0.0, began + number * _EVENT_SECONDS - now))
