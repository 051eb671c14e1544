"""The cost of an entry after its emission: encoding, and the exporter's interference with a busy main thread.

The agent is real and lives, and so does the OTLP server of the peer, each in a process of its own.
"""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.interleave import take_turns, without_gc
from benchmarks.harness.results import Row, Spread, against
from benchmarks.harness.thread_time import ThreadTime
from benchmarks.load.otlp_peer import ATTRIBUTES, grpc_exporter, provider, running_peer
from tests.support.agent.agent import running_agent, wait_until
from tests.support.agent.entries import acknowledged, emit_closed, emit_transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.instrumentation.runtime import Runtime

    from benchmarks.harness.interleave import Run

NOTES: Final = (
    (
        "*Encoding*: 512 entries to the bytes that are sent, each time. *Beside a hot loop*: the main thread computes all the time (pure Python, which holds the "
        "interpreter's lock) and emits so many entries a second, each the end of a request or a transfer, while the exporter sends them to a live agent every second, or when 512 of a kind wait; "
        "the peer makes as many spans, with a batch processor that exports 512 of them, or what there is each second, to a live OTLP server. *Emits and waiting*: of the time in which the main thread ran or was kept from it by its own process, the share "
        "that went into emits and into waiting for that lock, by the kernel's account (time in which it waited for a core is in neither; time in which the thread that had the lock waited for one is, so it is more on a busy machine). *An emit*: by the clock, the "
        "median burst. *CPU in the background*: of all other threads of the process until all is acknowledged, by entry."
    ),
)

BATCH: Final = 512
_SPAN: Final = "opentelemetry-sdk span"
_SAMPLE, _EVENT = "encoding of a sample", "encoding of an event"
_RATES: Final = (1_000, 10_000)
_SLICE, _QUICK_SLICE = 2.0, 0.5
_ROUNDS, _QUICK_ROUNDS = 10, 8
_ENCODINGS, _QUICK_ENCODINGS = 100, 30
_UNIT: Final = 2_000
_BURST: Final = 32
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Way:
    """One way to emit an entry, and to wait until all entries are delivered."""

    emit: Callable[[int], object]
    drain: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Slice:
    """What a stretch of the loop found.

    Attributes:
        lost: percent of its time, without that in which others had the cores, in emits or blocked: by the interpreter's lock.
        emit: nanoseconds of one, by the clock.
        background: nanoseconds of CPU of all other threads, by entry.

    """

    lost: float
    emit: float
    background: float


def measure(run: Run) -> list[Row]:
    """Measure both."""
    return [*_encoding(run), *_beside_a_loop(run)]


def background(run: Run, rounds: int) -> list[float]:
    """Return the nanoseconds of CPU time of all other threads an entry, at the lower rate; one a round."""
    rate = _RATES[0]
    with _ways() as (ours, _):
        run.say(f"{rate:,} entries a second beside a hot loop")
        return [_slice(ours, rate, _SLICE).background for _ in range(rounds)]


def _encoding(run: Run) -> list[Row]:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from penstock.instrumentation.core.guard import DropCounter
    from penstock.instrumentation.telemetry.emitter import Emitter
    from penstock.instrumentation.telemetry.encoder import frame, seal

    run.say("encoding")
    emitter = Emitter(lambda: None)
    emitter.saturate()
    for number in range(BATCH):
        emit_transfer(emitter, f"chatcmpl-{number:08x}-0a1b2c3d")  # type: ignore[arg-type]
        emit_closed(emitter, f"chatcmpl-{number:08x}-0a1b2c3d")  # type: ignore[arg-type]
    transfers, events = list(emitter.transfers), list(emitter.events)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("benchmark")
    spans: list[Any] = [tracer.start_span("kv.load", attributes=ATTRIBUTES) for _ in range(BATCH)]
    for span in spans:
        span.end()

    def ours(events: list[Any], transfers: list[Any]) -> object:
        (batch,) = seal(events, transfers, [], DropCounter())
        return frame(1, 1, batch)

    subjects: dict[str, Callable[[], object]] = {
        _SAMPLE: partial(ours, [], transfers),
        _EVENT: partial(ours, events, []),
        _SPAN: lambda: encode_spans(spans).SerializeToString(),
    }

    def timed(work: Callable[[], object]) -> float:
        began = time.thread_time()
        work()
        return (time.thread_time() - began) / BATCH * _NS

    with without_gc():
        found = take_turns(
            {name: partial(timed, work) for name, work in subjects.items()},
            _QUICK_ENCODINGS if run.quick else _ENCODINGS,
        )
    return [
        against(what, "ns", found[what], _SPAN, found[_SPAN], group="Encoding") for what in (_SAMPLE, _EVENT)
    ]


def _beside_a_loop(run: Run) -> list[Row]:
    with _ways() as (ours, theirs):
        rows: list[Row] = []
        for rate in _RATES[-1:] if run.quick else _RATES:
            run.say(f"{rate:,} entries a second beside a hot loop")
            seconds = _QUICK_SLICE if run.quick else _SLICE
            found = take_turns(
                {
                    "nothing": partial(_slice, None, rate, seconds),
                    "ours": partial(_slice, ours, rate, seconds),
                    "theirs": partial(_slice, theirs, rate, seconds),
                },
                _QUICK_ROUNDS if run.quick else _ROUNDS,
                run.say,
            )
            # In slices as short as a quick run's, times of the clock tell how busy the machine is.
            rows += _rows(rate, found["nothing"], found["ours"], found["theirs"])[-1 if run.quick else 0 :]
    return rows


def _rows(rate: int, nothing: list[Slice], ours: list[Slice], theirs: list[Slice]) -> list[Row]:
    group = f"Beside a hot loop, {rate:,} entries a second"

    def row(what: str, unit: str, name: str) -> Row:
        mine, other = ([getattr(each, name) for each in slices] for slices in (ours, theirs))
        return against(what, unit, mine, _SPAN, other, group=group)

    return [
        row("of the main thread's time, emits and waiting", "%", "lost"),
        Row("waiting, with nothing beside the loop", "%", Spread.of([each.lost for each in nothing]), group),
        row("an emit, in bursts of 32", "ns", "emit"),
        row("CPU in the background, an entry", "ns", "background"),
    ]


def _slice(way: Way | None, rate: int, seconds: float) -> Slice:
    """Compute for *seconds*, emitting *rate* entries a second in bursts, then wait until all are delivered."""
    emitted = 0
    bursts: list[float] = []
    emitting = 0.0
    process, before = time.process_time(), ThreadTime.now()
    began = now = time.perf_counter()
    end = began + seconds
    while now < end:
        _unit()
        if way is not None and (now - began) * rate >= emitted:
            cpu, wall = time.thread_time(), time.perf_counter()
            for number in range(_BURST):
                way.emit(number)
            bursts.append(time.perf_counter() - wall)
            emitting += time.thread_time() - cpu
            emitted += _BURST
        now = time.perf_counter()
    spent = ThreadTime.now().since(before)
    if way is not None:
        way.drain()
    behind = (time.process_time() - process) - ThreadTime.now().since(before).running
    # A neighbour on the machine makes the times of a few bursts long, and not their median.
    burst = statistics.median(bursts) if bursts else 0.0
    return Slice(
        lost=100 * (spent.blocked + emitting) / (spent.blocked + spent.running),
        emit=burst / _BURST * _NS,
        background=behind / max(emitted, 1) * _NS,
    )


def _unit() -> int:
    """Compute for some 50 µs."""
    total = 0
    for number in range(_UNIT):
        total += number
    return total


@contextmanager
def _ways() -> Iterator[tuple[Way, Way]]:
    from penstock.instrumentation.core.settings import Settings
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.telemetry.batcher import ROUTINE_DELAY

    with running_agent(["--log-level=warning"]) as agent, running_peer() as peer:
        runtime = Runtime()
        runtime.configure(Settings(endpoint=agent.listen))
        runtime.identify(process="engine-core", key="0", role="decode", model="tiny")
        traces = provider(grpc_exporter(peer), queue=1 << 16, batch=BATCH, delay=ROUTINE_DELAY)
        tracer = traces.get_tracer("benchmark")

        def emit(number: int) -> None:
            (emit_closed if number % 2 else emit_transfer)(runtime, ATTRIBUTES["gen_ai.request.id"])  # type: ignore[arg-type]

        def drain() -> None:
            wait_until(partial(acknowledged, runtime), "all is acknowledged")

        try:
            emit(0)
            drain()
            yield (
                Way(emit, drain),
                Way(lambda _: tracer.start_span("kv.load", attributes=ATTRIBUTES).end(), traces.force_flush),
            )
            _must_have_kept_all(runtime)
        finally:
            runtime.stop(5.0)
            traces.shutdown()


def _must_have_kept_all(runtime: Runtime) -> None:
    lost = runtime.emitter.drops.snapshot()
    if lost:
        raise RuntimeError(f"Entries were given up, so the comparison is not one: {lost}")
