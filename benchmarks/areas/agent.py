"""The agent's intake and cost: ``make bench ONLY=agent``.

How its cost grows with the number of sources is measured as :mod:`benchmarks.load.sources` does it. The peer is a server in Python that takes spans
over OTLP/gRPC from ``opentelemetry-sdk``, parses them and forgets them: no log, no metrics, no acknowledgement after a commit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Budget, Row, Section, Spread, against
from benchmarks.harness.thread_time import cpu_seconds
from benchmarks.load import otlp_load
from benchmarks.load.mixes import MIXES
from benchmarks.load.otlp_peer import ATTRIBUTES, grpc_exporter, provider, running_peer
from benchmarks.load.sources import Intake, Result, flood, load, own
from tests.support.agent.agent import running_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import TracerProvider

    from benchmarks.harness.interleave import Run
    from benchmarks.load.otlp_peer import Peer
    from tests.support.agent.agent import AgentProcess

AREA: Final = "agent"
TITLE: Final = "The agent"
MEANING: Final = (
    "The agent writes each entry to its log before it acknowledges it. The peers are opentelemetry-sdk "
    "with an OTLP server that parses and forgets, and one that keeps its spans in SQLite, as the agent "
    "does. An agent has to keep up with a pod's engines on a fraction of a core, and stay small while it "
    "does."
)
_NOTES: Final = (
    (
        "*Taking in*: entries by second of CPU of the agent's process, as full batches from 8 sources; committed to disk before they are acknowledged, and counted. *As engines send them*: the proportions of a pair of engines, prefill and decode. The peer is a Python "
        "server that takes spans over OTLP/gRPC from `opentelemetry-sdk`: one parses and forgets them; one that keeps them is as durable as the agent, it commits the body of a call to SQLite before it answers (neither "
        "counts, indexes or makes traces of anything). *Sources*: 2,000 events, or spans, a second in all, as batches every 200 ms; times from the send of a batch to its "
        "acknowledgement, in the sender, which shares the machine's cores; a new agent each round. More, and what it means: [scale](scale.md)."
    ),
)
_ARGS: Final = ("--log-level=warning",)
_SOURCES: Final = (1, 8, 64, 256)
_INGEST_SOURCES: Final = 8
_ROUNDS, _QUICK_ROUNDS = 10, 5
_SECONDS, _QUICK_SECONDS = 1.5, 0.8
_RATE: Final = 2_000
_RATE_SECONDS, _RATE_WARM_UP = 5.0, 2.0
_RATE_ROUNDS: Final = 4
_STARTS: Final = 5
_IDLE_SECONDS: Final = 2.0
_IDLE_ROUNDS: Final = 6
_MIB: Final = 1 << 20
_SPANS: Final = 512

_FORGETS, _KEEPS = "an OTLP server, spans", "an OTLP server that keeps spans"
_MIXES: Final = {"events": "events only", "samples": "samples only", "engine": "as engines send them"}
_QUICK_MIXES: Final = ("samples", "engine")
_INGEST_BUDGETS: Final = {
    mix: Budget(f"agent ingest, durable, entries a second and core: {words}", 200_000, at_most=False)
    for mix, words in _MIXES.items()
}
_STATE_BUDGETS: Final = {
    mix: Budget(f"bytes of state an entry costs: {words}", None) for mix, words in _MIXES.items()
}
_UNITS: Final = {
    "acknowledgement p50": "ms",
    "acknowledgement p99": "ms",
    "memory": "MiB",
    "CPU": "% of a core",
    "state on disk": "bytes an entry",
    "a scrape, over HTTP": "ms",
    "as much as it takes, as engines send them": "/s",
    "memory then": "MiB",
}
# By the number of sources.
_BUDGETS: Final = {
    64: {
        "acknowledgement p99": Budget(
            "acknowledgement, from send, p99 at 2,000 events/s from 64 sources", 20
        ),
        "memory": Budget("agent memory at 2,000 events/s from 64 sources", 150),
    },
    256: {
        "acknowledgement p99": Budget(
            "acknowledgement, from send, p99 at 2,000 events/s from 256 sources", 15
        )
    },
}


def measure(run: Run) -> Section:
    """Measure the area."""
    rows = _taking_in(run)
    if not run.quick:
        rows += _by_sources(run)
        rows += _alone(run)
    return Section(AREA, TITLE, _NOTES, rows)


# Taking in.


def _taking_in(run: Run) -> list[Row]:
    seconds = _QUICK_SECONDS if run.quick else _SECONDS
    mixes = _QUICK_MIXES if run.quick else tuple(MIXES)
    # An agent for each mix: what one has on disk is not the next one's.
    with ExitStack() as parts:
        agents = {mix: parts.enter_context(running_agent(_ARGS)) for mix in mixes}
        peers = {
            _FORGETS: parts.enter_context(running_peer()),
            _KEEPS: parts.enter_context(running_peer(keeps=True)),
        }
        taken = {mix: partial(_taken, agent, seconds, mix) for mix, agent in agents.items()}
        for name, peer in peers.items():
            taken[name] = partial(_spans, peer, parts.enter_context(_provider(peer)), seconds)
        for each in taken.values():
            each()
        run.say("taking in")
        found = take_turns(taken, _QUICK_ROUNDS if run.quick else _ROUNDS, run.say)
    return _taking_in_rows({mix: found[mix] for mix in mixes}, {name: found[name] for name in peers})


def _taking_in_rows(
    found: Mapping[str, Sequence[Intake]], peers: Mapping[str, Sequence[Intake]]
) -> list[Row]:
    group = "Taking in"
    rows = [
        against(
            f"entries by second of CPU, {_MIXES[mix]}",
            "/s",
            [each.per_core for each in taken],
            peer,
            [each.per_core for each in theirs],
            group=group,
            budget=_INGEST_BUDGETS.get(mix) if peer == _FORGETS else None,
            better="higher",
        )
        for mix, taken in found.items()
        for peer, theirs in peers.items()
    ]
    rows += [
        against(
            f"state on disk, {_MIXES[mix]}",
            "bytes an entry",
            [each.state_bytes / each.entries for each in taken],
            _KEEPS,
            [each.state_bytes / each.entries for each in peers[_KEEPS]],
            group=group,
            budget=_STATE_BUDGETS[mix],
        )
        for mix, taken in found.items()
    ]
    return rows


def _taken(agent: AgentProcess, seconds: float, mix: str) -> Intake:
    return asyncio.run(flood(agent, _INGEST_SOURCES, seconds, mix))


def _spans(peer: Peer, traces: TracerProvider, seconds: float) -> Intake:
    """Return the server's intake."""
    tracer = traces.get_tracer("benchmark")
    before, end = peer.used(), time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(_SPANS):
            tracer.start_span("kv.load", attributes=ATTRIBUTES).end()
        traces.force_flush()
    after = peer.used()
    return Intake(
        after.spans - before.spans,
        seconds,
        after.cpu_seconds - before.cpu_seconds,
        after.disk - before.disk,
    )


@contextmanager
def _provider(peer: Peer) -> Iterator[TracerProvider]:
    made = provider(grpc_exporter(peer), queue=_SPANS * 8, batch=_SPANS, delay=3600)
    try:
        yield made
    finally:
        made.shutdown()


# By sources.


def _by_sources(run: Run) -> list[Row]:
    run.say("by sources")
    found = take_turns(
        {
            f"{who} {sources}": partial(way, sources)
            for sources in _SOURCES
            for who, way in (("ours", _ours), ("theirs", _theirs))
        },
        _RATE_ROUNDS,
        run.say,
    )
    return [
        row
        for sources in _SOURCES
        for row in _sources_rows(sources, found[f"ours {sources}"], found[f"theirs {sources}"])
    ]


def _ours(sources: int) -> Mapping[str, float]:
    result = Result(sources)
    with running_agent(_ARGS) as agent:
        asyncio.run(load(agent, result, _RATE, _RATE_SECONDS))
    return {
        **_answers(result.acks),
        "memory": result.memory,
        "CPU": result.cpu,
        "state on disk": result.bytes_per_entry,
        "a scrape, over HTTP": result.scrape,
        "as much as it takes, as engines send them": result.throughput,
        "memory then": result.peak,
    }


def _theirs(sources: int) -> Mapping[str, float]:
    with running_peer(keeps=True) as peer:
        found = asyncio.run(otlp_load.load(peer, sources, _RATE, _RATE_SECONDS, _RATE_WARM_UP))
    return {
        **_answers(found.answers),
        "memory": found.memory,
        "CPU": found.cpu,
        "state on disk": found.bytes_per_span,
    }


def _answers(milliseconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {"acknowledgement p50": cuts[49], "acknowledgement p99": cuts[98]}


def _sources_rows(
    sources: int, ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> list[Row]:
    group = f"2,000 a second from {sources} source{'s' if sources > 1 else ''}"
    budgets = _BUDGETS.get(sources, {})
    rows = []
    for what, unit in _UNITS.items():
        values, budget = [each[what] for each in ours], budgets.get(what)
        if what in theirs[0]:
            others = [each[what] for each in theirs]
            rows.append(against(what, unit, values, _KEEPS, others, group=group, budget=budget))
        else:
            rows.append(Row(what, unit, Spread.of(values), group, budget=budget))
    return rows


# Alone.


def _alone(run: Run) -> list[Row]:
    run.say("start-up")
    group, server = "Alone", "an OTLP server"
    found = take_turns(
        {"ours": partial(_start, partial(running_agent, _ARGS)), "theirs": partial(_start, running_peer)},
        _STARTS,
    )
    rows = [
        against("from its start until it is ready", "s", found["ours"], server, found["theirs"], group=group)
    ]
    run.say("idle")
    with running_agent(_ARGS) as agent, running_peer() as peer:
        idle = [_idle(agent, peer) for _ in range(_IDLE_ROUNDS)]
        rows += [
            # The peer's may be nothing, so there is no ratio.
            Row(
                "CPU with no engine connected", "% of a core", Spread.of([ours for ours, _ in idle]),
                group, server, Spread.of([theirs for _, theirs in idle]),
            ),
            against(
                "memory with no engine connected", "MiB",
                [own(agent, "process_resident_memory_bytes") / _MIB],
                server, [peer.used().memory / _MIB], group=group,
            ),
        ]  # fmt: skip
    return rows


def _idle(agent: AgentProcess, peer: Peer) -> tuple[float, float]:
    """Return the idle CPU of both in percent of a core, without sources or scrapes."""
    assert agent.process is not None
    processes = agent.process.pid, peer.process.pid
    before, began = [cpu_seconds(each) for each in processes], time.monotonic()
    time.sleep(_IDLE_SECONDS)
    took = (time.monotonic() - began) / 100
    ours, theirs = (
        (cpu_seconds(each) - earlier) / took for each, earlier in zip(processes, before, strict=True)
    )
    return ours, theirs


def _start(begin: Callable[[], AbstractContextManager[object]]) -> float:
    began = time.monotonic()
    with begin():
        return time.monotonic() - began
