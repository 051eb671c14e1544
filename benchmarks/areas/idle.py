"""What an idle process of an engine pays for the engine side: ``make bench ONLY=idle``.

All processes idle at the same time, and are counted over the same seconds.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.harness.results import Budget, Row, Section, Spread, against
from benchmarks.harness.thread_time import cpu_seconds
from benchmarks.load.idle_engine import running_idle_engine
from tests.support.agent.agent import running_agent

if TYPE_CHECKING:
    from benchmarks.harness.interleave import Run
    from benchmarks.load.idle_engine import IdleEngine

AREA: Final = "idle"
TITLE: Final = "An idle engine"
MEANING: Final = (
    "What an engine pays while nothing happens: a snapshot a second. The peer is the same engine side on "
    "gRPC's synchronous API, whose threads wake ten times a second each. What is left is gRPC's core, which "
    "keeps from 4 to 16 threads, one for each core of the machine."
)
_NOTES: Final = (
    (
        "A process with nothing of an engine's but the engine side, connected to a real agent: *EngineCore* has exporter and policy client, *a worker* the exporter alone. "
        "A snapshot goes each second, and HTTP/2 pings where a connection is silent. *CPU* is that of all threads, by the kernel's account; *wake-ups* are voluntary context switches. "
        "The threads of gRPC's core do not need the interpreter's lock: gRPC keeps as many as there are cores, from 4 to 16, and each looks for work some times a second after it had some. "
        "The peer is the same engine side on gRPC's synchronous API, which it uses with gRPC before 1.80."
    ),
)
_CPU_LIMIT: Final = 0.2
_WAKE_UPS_LIMIT: Final = 1.0
_PEER: Final = "gRPC's synchronous API"
_PROCESSES: Final = {"engine-core": "EngineCore", "worker": "a worker"}
_SETTLE, _WINDOW, _ROUNDS = 20.0, 5.0, 24


@dataclass(frozen=True, slots=True)
class Idle:
    """One process over one window: percent of a core, and wake-ups a second of three kinds of threads."""

    cpu: float
    exporter: float
    python: float
    core: float


def measure(run: Run) -> Section:
    """Measure the area."""
    with ExitStack() as parts:
        agent = parts.enter_context(running_agent(["--log-level=warning"]))
        engines = {
            (process, kind): parts.enter_context(running_idle_engine(agent.listen, kind, process))
            for process in _PROCESSES
            for kind in ("loop", "threads")
        }
        run.say("settling")
        time.sleep(_SETTLE)
        found: dict[tuple[str, str], list[Idle]] = {name: [] for name in engines}
        for number in range(_ROUNDS):
            run.say(f"window {number + 1} of {_ROUNDS}")
            for name, idle in _window(engines).items():
                found[name].append(idle)
    rows: list[Row] = []
    for process, title in _PROCESSES.items():
        rows += _rows(title, found[process, "loop"], found[process, "threads"])
    return Section(AREA, TITLE, _NOTES, rows)


def _window(engines: dict[tuple[str, str], IdleEngine]) -> dict[tuple[str, str], Idle]:
    """Count all of *engines* over a window."""
    before = {name: (time.monotonic(), _counts(engine)) for name, engine in engines.items()}
    time.sleep(_WINDOW)
    found = {}
    for name, engine in engines.items():
        began, (cpu_before, slept_before) = before[name]
        cpu, slept = _counts(engine)
        seconds = time.monotonic() - began
        rates = {thread: (slept[thread] - slept_before.get(thread, 0)) / seconds for thread in slept}
        found[name] = Idle(
            cpu=100 * (cpu - cpu_before) / seconds,
            exporter=rates[engine.exporter],
            python=sum(rate for thread, rate in rates.items() if thread in engine.python),
            core=sum(rate for thread, rate in rates.items() if thread not in engine.python),
        )
    return found


def _counts(engine: IdleEngine) -> tuple[float, dict[int, int]]:
    return cpu_seconds(engine.pid), engine.wake_ups()


def _rows(group: str, ours: list[Idle], theirs: list[Idle]) -> list[Row]:
    def row(what: str, unit: str, name: str, budget: Budget | None = None) -> Row:
        mine, other = ([getattr(each, name) for each in idles] for idles in (ours, theirs))
        return against(what, unit, mine, _PEER, other, group=group, budget=budget)

    return [
        row("CPU", "% of a core", "cpu", Budget(f"idle, {group}: % of a core", _CPU_LIMIT)),
        Row(
            "wake-ups of the exporter's thread",
            "/s",
            Spread.of([each.exporter for each in ours]),
            group,
            budget=Budget(f"idle, {group}: wake-ups of the exporter a second", _WAKE_UPS_LIMIT),
        ),
        row("wake-ups of all Python threads, gRPC's too", "/s", "python"),
        row("wake-ups of the threads of gRPC's core", "/s", "core"),
    ]
