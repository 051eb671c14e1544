"""What the agent takes in, and what it takes: ``make bench ONLY=agent``.

How its cost grows with the number of sources is measured as :mod:`benchmarks.scale` does it. The peer is a server in Python that takes spans
over OTLP/gRPC from ``opentelemetry-sdk``, parses them and forgets them: no log, no metrics, no acknowledgement after a commit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.mixes import MIXES
from benchmarks.otlp_peer import ATTRIBUTES, grpc_exporter, provider, running_peer
from benchmarks.rows import Budget, Row, Section, Spread, against
from benchmarks.scale import Result, Taken, flood, load, own
from benchmarks.turns import take_turns
from tests.support.agent import running_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import TracerProvider

    from benchmarks.otlp_peer import Peer
    from benchmarks.turns import Run
    from tests.support.agent import AgentProcess

AREA: Final = "agent"
TITLE: Final = "The agent"
_NOTES: Final = (
    (
        "*Taking in*: entries by second of CPU of the agent's process, as full batches from 8 sources; committed to disk before they are acknowledged, and counted. *As engines send them*: the proportions of a pair of engines, prefill and decode. The peer is a Python "
        "server that takes spans over OTLP/gRPC from `opentelemetry-sdk`, parses and forgets them. *Sources*: 2,000 events a second in all; times from the send of a batch to its "
        "acknowledgement, in the sender, which shares the machine's cores. More, and what it means: [scale](scale.md)."
    ),
)
_ARGS: Final = ("--log-level=warning",)
_SOURCES: Final = (1, 8, 64, 256)
_INGEST_SOURCES: Final = 8
_ROUNDS, _QUICK_ROUNDS = 10, 5
_SECONDS, _QUICK_SECONDS = 1.5, 0.8
_RATE: Final = 2_000
_RATE_SECONDS: Final = 12.0
_OF_BUDGET: Final = 64
_STARTS: Final = 5
_IDLE_SECONDS: Final = 10.0
_MIB: Final = 1 << 20
_SPANS: Final = 512

_SPANS_OF_PEER: Final = "spans"
_MIXES: Final = {"events": "events only", "samples": "samples only", "engine": "as engines send them"}
_QUICK_MIXES: Final = ("samples", "engine")
_INGEST_BUDGETS: Final = {
    mix: Budget(f"agent ingest, durable, entries a second and core: {words}", 200_000, at_most=False)
    for mix, words in _MIXES.items()
}
_BUDGETS: Final = {
    "acknowledgement p99": Budget("acknowledgement, from send, p99 at 2,000 events/s from 64 sources", 20),
    "memory": Budget("agent memory at 2,000 events/s from 64 sources", 150),
}


def measure(run: Run) -> Section:
    """Measure the area."""
    rows = _taking_in(run)
    if not run.quick:
        for sources in _SOURCES:
            run.say(f"{sources} sources")
            rows += _sources(sources)
        rows += _alone(run)
    return Section(AREA, TITLE, _NOTES, rows)


# Taking in.


def _taking_in(run: Run) -> list[Row]:
    seconds = _QUICK_SECONDS if run.quick else _SECONDS
    mixes = _QUICK_MIXES if run.quick else tuple(MIXES)
    # An agent for each mix: what one has on disk is not the next one's.
    with ExitStack() as parts:
        agents = {mix: parts.enter_context(running_agent(_ARGS)) for mix in mixes}
        peer = parts.enter_context(running_peer())
        traces = parts.enter_context(_provider(peer))
        taken = {mix: partial(_taken, agent, seconds, mix) for mix, agent in agents.items()}
        for each in taken.values():
            each()
        run.say("taking in")
        found = take_turns(
            {**taken, _SPANS_OF_PEER: partial(_spans, peer, traces, seconds)},
            _QUICK_ROUNDS if run.quick else _ROUNDS,
            run.say,
        )
    return _taking_in_rows(
        {mix: found[mix] for mix in mixes}, [each.per_core for each in found[_SPANS_OF_PEER]]
    )


def _taking_in_rows(found: Mapping[str, Sequence[Taken]], theirs: Sequence[float]) -> list[Row]:
    rows = [
        against(
            f"entries by second of CPU, {_MIXES[mix]}",
            "/s",
            [each.per_core for each in taken],
            "an OTLP server, spans",
            theirs,
            group="Taking in",
            budget=_INGEST_BUDGETS.get(mix),
            better="higher",
        )
        for mix, taken in found.items()
    ]
    rows += [
        Row(
            f"state on disk, {_MIXES[mix]}",
            "bytes an entry",
            Spread.one(sum(each.state_bytes for each in taken) / sum(each.entries for each in taken)),
            "Taking in",
        )
        for mix, taken in found.items()
    ]
    return rows


def _taken(agent: AgentProcess, seconds: float, mix: str) -> Taken:
    return asyncio.run(flood(agent, _INGEST_SOURCES, seconds, mix))


def _spans(peer: Peer, traces: TracerProvider, seconds: float) -> Taken:
    """Return what the server has taken in."""
    tracer = traces.get_tracer("benchmark")
    spans, cpu = peer.told()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(_SPANS):
            tracer.start_span("kv.load", attributes=ATTRIBUTES).end()
        traces.force_flush()
    later, used = peer.told()
    return Taken(later - spans, seconds, used - cpu, 0)


@contextmanager
def _provider(peer: Peer) -> Iterator[TracerProvider]:
    made = provider(grpc_exporter(peer), queue=_SPANS * 8, batch=_SPANS, delay=3600)
    try:
        yield made
    finally:
        made.shutdown()


# By sources.


def _sources(sources: int) -> list[Row]:
    result = Result(sources)
    with running_agent(_ARGS) as agent:
        asyncio.run(load(agent, result, _RATE, _RATE_SECONDS))
    cuts = statistics.quantiles(result.acks, n=100, method="inclusive")
    group = (
        f"2,000 events a second from {sources} sources"
        if sources > 1
        else "2,000 events a second from 1 source"
    )
    budgets = _BUDGETS if sources == _OF_BUDGET else {}
    measured = (
        ("acknowledgement p50", "ms", cuts[49]),
        ("acknowledgement p99", "ms", cuts[98]),
        ("memory", "MiB", result.memory),
        ("CPU", "% of a core", result.cpu),
        ("state on disk", "bytes an event", result.bytes_per_entry),
        ("a scrape, over HTTP", "ms", result.scrape),
        ("as much as it takes, as engines send them", "/s", result.throughput),
        ("memory then", "MiB", result.peak),
    )
    return [
        Row(what, unit, Spread.one(value), group, budget=budgets.get(what)) for what, unit, value in measured
    ]


# Alone.


def _alone(run: Run) -> list[Row]:
    run.say("start-up")
    group = "Alone"
    found = take_turns(
        {"ours": partial(_start, partial(running_agent, _ARGS)), "theirs": partial(_start, running_peer)},
        _STARTS,
    )
    run.say("idle")
    with running_agent(_ARGS) as agent:
        before, began = own(agent, "cpu_seconds_total"), time.monotonic()
        time.sleep(_IDLE_SECONDS)
        cpu = 100 * (own(agent, "cpu_seconds_total") - before) / (time.monotonic() - began)
        memory = own(agent, "resident_memory_bytes") / _MIB
    return [
        against(
            "from its start until it is ready",
            "s",
            found["ours"],
            "an OTLP server",
            found["theirs"],
            group=group,
        ),
        Row("CPU with nobody there, scraped twice", "% of a core", Spread.one(cpu), group),
        Row("memory with nobody there", "MiB", Spread.one(memory), group),
    ]


def _start(begin: Callable[[], AbstractContextManager[object]]) -> float:
    began = time.monotonic()
    with begin():
        return time.monotonic() - began
