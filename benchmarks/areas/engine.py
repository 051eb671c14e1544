"""The cost of Penstock to a real engine: ``make bench ONLY=engine``.

The budget is held against engines that are with and without Penstock by turns (:mod:`benchmarks.in_engine.schedule`). Beside them, to see what else changes and
what vLLM's own traces cost, engines of all variants are up at once, with a tiny model, which makes Penstock's part of a step as large as it can be; one is driven at a
time, in another order for each load and round. Two engines without Penstock: what the others are compared with is their mean, and
their difference is the noise. The same with pairs of prefill and decode servers over NIXL.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from benchmarks.areas.policy import change
from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Budget, Row, Section, Spread, against
from benchmarks.in_engine import client
from benchmarks.in_engine.client import MODULE as SWITCHED
from benchmarks.in_engine.client import Switched, Switching
from benchmarks.load.engines import MODULE, VARIANT, cpu_seconds, idle_priority, start_servers
from benchmarks.load.otlp_peer import running_peer
from benchmarks.load.traffic import Load, Route, drive, run_under_load
from demo.common.agent import Agent
from demo.common.client import fetch
from demo.common.metrics import Metrics
from demo.servers import Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.harness.interleave import Run
    from benchmarks.harness.results import Better

AREA: Final = "engine"
TITLE: Final = "A real engine"
MEANING: Final = (
    "A whole engine with Penstock and without. The model is tiny and the machine has two cores, so a step "
    "is some milliseconds and two equal engines differ by some per cent: an interval that contains the "
    "limit is the machine's noise."
)
PLOTTED: Final = ("throughput, Penstock",)
_NOTES: Final = (
    (
        "*By turns in one engine*: two processes of the same program differ by some per cent for as long as they run, so one engine is compared with itself: its processes "
        "take Penstock out and put it back at the same moments, every 0.3 s, in an order in which drifts cancel out (with, without, without, with, without, with, with, without), while clients "
        "go on asking. Such an eight is one comparison, and has at least one batch and one snapshot of Penstock's in it; *without, again* compares the blocks without of two eights with each other. What it did is "
        "counted in the engine: tokens, steps, CPU time of EngineCore and API process with all their threads (what a thread of Penstock does later, it does in a later block that is with Penstock, because its clock "
        "stands still meanwhile). The interval is that of the median over the eights, by ranks. Not in it: memory, and what gRPC's threads do while nothing is sent, which stays (0.2 % of a core a process, [profiles](profiles.md)). "
        "Agent and OTLP server run only where a core is idle (SCHED_IDLE), as if they had cores of their own: what they cost is in *The agent*."
    ),
    (
        "*Engines side by side*: vLLM on the CPU with a tiny model: what Penstock does in a step is set against a step of some milliseconds, where a real model's takes ten times that. Engines, "
        "client, agent and OTLP server share the machine's cores. The peer is the mean of two engines without Penstock, and *without, again* is the second against the "
        "first: no difference smaller than that can be seen. *Penstock, no agent*: no process listens at its endpoint. *vLLM's own traces*: `--otlp-traces-endpoint` to a "
        "server that counts spans; the agent exports its spans to the same one. Decode-heavy: 16 tokens in, 24 to 96 out; prefill-heavy: 256 in, 4 out."
    ),
    (
        "*Throughput*: output tokens a second. *Inter-token latency*: between two parts of a streamed answer, at the client. *Step*: the time of the turn by vLLM's count of "
        "its steps. *CPU*: of all of the server's processes, for the same work. NIXL's progress threads sleep for a millisecond between two polls, in all pairs alike "
        "(decision 6): those of six engines would take the cores for themselves."
    ),
)
_WITHOUT, _AGAIN = "without", "without, again"
_NO_AGENT, _AGENT, _VLLM = "Penstock, no agent", "Penstock, agent", "vLLM's own traces"
_SEQUENCES: Final = ("--max-num-seqs", "256")
_LOADS: Final = (
    Load("decode-heavy, 1 at a time", 1, 1, 16, 96),
    Load("decode-heavy, 64 at a time", 64, 64, 16, 32),
    Load("decode-heavy, 256 at a time", 256, 256, 16, 24),
    Load("prefill-heavy, 1 at a time", 1, 16, 256, 4),
    Load("prefill-heavy, 64 at a time", 64, 64, 256, 4),
    Load("prefill-heavy, 256 at a time", 256, 256, 256, 4),
)
_PAIR_LOADS: Final = (
    Load("prefill → decode over NIXL, 1 at a time", 1, 4, 256, 16),
    Load("prefill → decode over NIXL, 16 at a time", 16, 32, 256, 16),
)
_SECONDS: Final = 100.0
_PAIR_SECONDS: Final = 75.0
_SWITCHED: Final = (
    (_AGENT, replace(_LOADS[0], varies=True), 60.0),
    (_AGENT, replace(_LOADS[1], varies=True), 120.0),
    (_AGENT, replace(_LOADS[4], varies=True), 60.0),
    (_NO_AGENT, replace(_LOADS[1], varies=True), 60.0),
)
"""The switching servers: name, load, seconds."""
_LEAST_ROUNDS: Final = 3
_MOST_ROUNDS: Final = 40
_POLICIES: Final = 30
_PEER: Final = "without Penstock"
_BUDGETS: Final = {
    name: Budget(f"real vLLM throughput: {name} ÷ without", 0.99, of="ratio", at_most=False)
    for name in (_AGENT, _NO_AGENT)
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One variant's results under one load: tokens a second, milliseconds, CPU seconds."""

    throughput: float
    p50: float
    p99: float
    first: float
    step: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: the server under load, and the servers whose CPU counts."""

    route: Route
    servers: Sequence[Server]


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of a load's table."""

    what: str
    unit: str
    of: Callable[[Turn], float]
    better: Better = "lower"


_MEASURES: Final = (
    Measure("throughput", "tokens/s", lambda turn: turn.throughput, better="higher"),
    Measure("inter-token latency p50", "ms", lambda turn: turn.p50),
    Measure("inter-token latency p99", "ms", lambda turn: turn.p99),
    Measure("step", "ms", lambda turn: turn.step),
    Measure("CPU", "s", lambda turn: turn.cpu),
)
_PAIR_MEASURES: Final = (
    *_MEASURES[:3],
    Measure("time to first token", "ms", lambda turn: turn.first),
    _MEASURES[-1],
)


def measure(run: Run) -> Section:
    """Measure the area."""
    rows = [*_single(run), *_pairs(run)]
    return Section(AREA, TITLE, _NOTES, rows)


# One server a variant.


def _single(run: Run) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place, ExitStack() as parts:
        directory = Path(place)
        traces = parts.enter_context(running_peer())
        agent = _agent(directory, traces.endpoint, 1, parts)
        switches = {name: Switching(directory / "switch" / name) for name in (_AGENT, _NO_AGENT)}
        env = {
            _NO_AGENT: {"PENSTOCK_ENDPOINT": f"unix://{directory}/absent.sock", **switches[_NO_AGENT].env},
            _AGENT: {"PENSTOCK_ENDPOINT": agent.endpoint, **switches[_AGENT].env},
            _VLLM: {"OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"},
        }
        args = {_VLLM: ("--otlp-traces-endpoint", traces.endpoint)}
        names = (_WITHOUT, _AGAIN, _NO_AGENT, _AGENT, _VLLM)
        specs = [
            ServerSpec(
                name,
                module=SWITCHED if name in switches else MODULE,
                env={**VARIANT, **env.get(name, {})},
                args=(*_SEQUENCES, *args.get(name, ())),
            )
            for name in names
        ]
        run.say(f"{len(specs)} engines start")
        servers = start_servers(specs, directory, parts, run.say)
        subjects = {name: Subject(Route(server.url), (server,)) for name, server in servers.items()}
        routes = {name: (switches[name], subjects[name].route) for name in switches}
        found = _rounds(subjects, _LOADS, _SECONDS, run.say)
        with idle_priority(agent.child.pid, traces.process.pid):
            by_turns = _by_turns(routes, run.say)
        rows = [
            *by_turns,
            *_tables(found, _MEASURES, "Engines side by side, all loads"),
        ]
        run.say("policies into a busy engine")
        return [*rows, *_policies(agent, subjects[_AGENT], found[_LOADS[1].name][_AGENT])]


def _agent(directory: Path, traces: str, engines: int, parts: ExitStack) -> Agent:
    agent = Agent(directory, otlp_endpoint=traces, engines=engines)
    parts.callback(agent.stop)
    agent.start()
    return agent


def _policies(agent: Agent, subject: Subject, turns: Sequence[Turn]) -> list[Row]:
    """Change the policy repeatedly while the engine is busy; it acknowledges at the end of a step."""
    took: list[float] = []

    def change_it() -> None:
        with grpc.insecure_channel(agent.admin) as channel:
            stub = AdminStub(channel)  # type: ignore[no-untyped-call]
            for number in range(_POLICIES):
                took.extend(each * 1e3 for each in change(stub, 1000 + number)[1])

    run_under_load(subject.route, _LOADS[1], change_it)
    step = Spread.of([turn.step for turn in turns])
    return [
        Row(
            "set-policy → in force",
            "ms",
            Spread.of(took),
            f"A policy into a busy engine: {_LOADS[1].name}",
            "a step of the engine",
            step,
        )
    ]


def _by_turns(switches: Mapping[str, tuple[Switching, Route]], say: Callable[[str], None]) -> list[Row]:
    found: dict[str, dict[str, Switched]] = {name: {} for name in switches}
    for name, load, seconds in _SWITCHED:
        say(f"{name}, on and off by turns for {seconds:.0f} s: {load.name}")
        switch, route = switches[name]
        found[name][load.name] = switch.watched(route, load, seconds)
    return client.tables(found, _BUDGETS)


# Prefill and decode.


def _pairs(run: Run) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place, ExitStack() as parts:
        directory = Path(place)
        traces = parts.enter_context(running_peer())
        agent = _agent(directory, traces.endpoint, 2, parts)
        specs = []
        for name in (_WITHOUT, _AGAIN, _AGENT):
            endpoint = agent.endpoint if name == _AGENT else ""
            for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
                env = {
                    "PENSTOCK_ENDPOINT": endpoint,
                    "PENSTOCK_SERVER": role,
                    "PENSTOCK_LABELS": f"role={role}",
                }
                specs.append(ServerSpec(f"{name}, {role}", kv_role, module=MODULE, env={**VARIANT, **env}))
        run.say(f"{len(specs)} engines start")
        servers = start_servers(specs, directory, parts, run.say)
        subjects = {}
        for name in (_WITHOUT, _AGAIN, _AGENT):
            prefill, decode = servers[f"{name}, prefill"], servers[f"{name}, decode"]
            subjects[name] = Subject(Route(decode.url, prefill.url), (prefill, decode))
        return _tables(_rounds(subjects, _PAIR_LOADS, _PAIR_SECONDS, run.say), _PAIR_MEASURES)


# Rounds, and what they come to.


def _rounds(
    subjects: Mapping[str, Subject], loads: Sequence[Load], seconds: float, say: Callable[[str], None]
) -> dict[str, dict[str, list[Turn]]]:
    """Return the turns by load and variant, as many rounds as fit in the time."""
    for load in loads:
        for name, subject in subjects.items():
            say(f"warm-up: {name}, {load.name}")
            drive(subject.route, load, seed=0)
    found: dict[str, dict[str, list[Turn]]] = {load.name: {name: [] for name in subjects} for load in loads}
    began = time.monotonic()
    for number in range(_MOST_ROUNDS):
        left = seconds - (time.monotonic() - began)
        if number >= _LEAST_ROUNDS and left <= 0:
            break
        say(f"round {number + 1}, {max(left, 0):.0f} s left")
        for load in loads:
            # The seed names the prompts; 0 were the warm-up's.
            work = {name: partial(_turn, subject, load, number + 1) for name, subject in subjects.items()}
            for name, turns in take_turns(work, 1, seed=number).items():
                found[load.name][name] += turns
    return found


def _turn(subject: Subject, load: Load, seed: int) -> Turn:
    decode = subject.servers[-1]
    steps, cpu = _steps(decode), sum(cpu_seconds(each) for each in subject.servers)
    seen = drive(subject.route, load, seed)
    cpu = sum(cpu_seconds(each) for each in subject.servers) - cpu
    return Turn(
        throughput=load.requests * load.output / seen.took,
        p50=seen.gap(50),
        p99=seen.gap(99),
        first=statistics.median(seen.first) * 1e3,
        step=seen.took * 1e3 / max(_steps(decode) - steps, 1),
        cpu=cpu,
    )


def _steps(server: Server) -> float:
    return Metrics.parse(fetch(f"{server.url}/metrics").text).value("vllm:iteration_tokens_total_count")


def _tables(
    found: Mapping[str, Mapping[str, Sequence[Turn]]], measures: Sequence[Measure], pooled: str = ""
) -> list[Row]:
    """Return a table of each load, and before them one of all loads together, if it has a name."""
    rows: list[Row] = []
    every: list[Row] = []
    for each in measures:
        for name in [name for name in next(iter(found.values())) if name != _WITHOUT]:
            together: list[float] = []
            for load, turns in found.items():
                mine = [each.of(turn) for turn in turns[name]]
                other = _peers(turns, name, each)
                what, better = f"{each.what}, {name}", each.better
                rows.append(against(what, each.unit, mine, _PEER, other, group=load, better=better))
                together += [ours / theirs for ours, theirs in zip(mine, other, strict=True)]
            every.append(Row(what, "", None, pooled, _PEER, None, Spread.of(together), better=better))
    order = {load: number for number, load in enumerate(found)}
    return [*(every if pooled else ()), *sorted(rows, key=lambda row: order[row.group])]


def _peers(turns: Mapping[str, Sequence[Turn]], name: str, measure: Measure) -> list[float]:
    """Return the variant's reference of each round."""
    first, second = ([measure.of(turn) for turn in turns[each]] for each in (_WITHOUT, _AGAIN))
    if name == _AGAIN:
        return first
    return [statistics.fmean(pair) for pair in zip(first, second, strict=True)]
