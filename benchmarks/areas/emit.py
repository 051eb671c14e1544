"""The cost of an entry to the emitting thread, against common alternatives: ``make bench ONLY=emit``.

Alone (nothing drains what is emitted; it is thrown away between the rounds), as statements in a compiled loop without the garbage
collector, as ``timeit`` has it. What goes on in the background is in :mod:`benchmarks.areas.exporter_cost`.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
import timeit
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.areas import exporter_cost
from benchmarks.harness.interleave import Run, take_turns, without_gc
from benchmarks.harness.results import Budget, Section, against
from benchmarks.load.otlp_peer import ATTRIBUTES, provider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.harness.results import Row

AREA: Final = "emit"
TITLE: Final = "Emit path"
MEANING: Final = (
    "What an engine's own threads pay when something happens: they append an entry and go on. All else is "
    "done by a thread in the background, which holds the interpreter's lock for as short a time as it "
    "can. Metrics and spans that a process makes for itself cost several times that."
)
_NOTES: Final = (
    (
        "What the engine's own threads pay. *Sample*: a completed transfer, 14 fields. *Event*: a transfer failure with its peer and text. One sample tells what a "
        "labelled counter and two labelled histograms would count (transfers, duration, bytes), and a span. Peers with labels have them looked up at each "
        "call, since peers come and go. `logging` writes to a file on tmpfs; a DogStatsD datagram goes to a socket of this machine, one a call. In the first table "
        "nothing is exported meanwhile, times are the thread's CPU time, and the garbage collector is off."
    ),
    *exporter_cost.NOTES,
)
_PER_ROUND: Final = 500
_ROUNDS, _QUICK_ROUNDS = 200, 60
_NS: Final = 1e9
_CAPACITY: Final = 1 << 18

_SAMPLE_BUDGET: Final = Budget("`emit()` of a sample", 250)
_EVENT_BUDGET: Final = Budget("`emit()` of an event", 1000)
_SAMPLE, _EVENT = "emit() of a sample", "emit() of an event"

# The statement of each subject; its names are those of :func:`_namespace`.
_OURS: Final = {
    _SAMPLE: (
        "emit_transfer(end, 11_000_000, size, 6, 40_000, 0, 1, 2, 1, 2, 0, 'NixlConnector', peer, 'engine-a', request)"
    ),
    _EVENT: (
        "emit_event('transfer_failure', {'channel': 1, 'peer': {'address': peer}, 'mode': 1, 'error_type': 1,"
        " 'error_text': text}, component=2, request_id=request)"
    ),
}
_COUNTER, _HISTOGRAM = "prometheus_client Counter.inc", "prometheus_client Histogram.observe"
_COUNTER_LABELS, _HISTOGRAM_LABELS = (
    "prometheus_client Counter.labels().inc",
    "prometheus_client Histogram.labels().observe",
)
_SAME = "prometheus_client, the same three metrics with labels()"
_OTEL_COUNTER = "opentelemetry-sdk Counter.add"
_SPAN = "opentelemetry-sdk span, start and end"
_LOGGING, _STATSD = "logging to a file", "a DogStatsD datagram"
_THEIRS: Final = {
    _COUNTER: "counter.inc()",
    _HISTOGRAM: "histogram.observe(0.011)",
    _COUNTER_LABELS: "labelled_counter.labels('kv', 'NixlConnector', peer).inc()",
    _HISTOGRAM_LABELS: "labelled_histogram.labels('kv', peer).observe(0.011)",
    _SAME: (
        "labelled_counter.labels('kv', 'NixlConnector', peer).inc();"
        " labelled_histogram.labels('kv', peer).observe(0.011); sizes.labels('kv', peer).observe(size)"
    ),
    _OTEL_COUNTER: "otel_counter.add(1, {'channel': 'kv', 'connector': 'NixlConnector', 'peer': peer})",
    _SPAN: "tracer.start_span('kv.load', attributes=attributes).end()",
    _LOGGING: "log.warning('transfer of %s from %s: %d bytes, %d ns', request, peer, size, 11_000_000)",
    _STATSD: "send(f'penstock.transfer:{11}|h|#channel:kv,peer:{peer},request:{request}'.encode(), agent)",
}
_PEERS_OF_AN_EVENT: Final = (_COUNTER_LABELS, _SPAN, _LOGGING, _STATSD)


def measure(run: Run) -> Section:
    """Measure the area."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, ExitStack() as parts:
        rows = _alone(run, Path(directory), parts)
    rows += exporter_cost.measure(run)
    return Section(AREA, TITLE, _NOTES, rows)


def _alone(run: Run, directory: Path, parts: ExitStack) -> list[Row]:
    run.say("one thread, nothing exported")
    names, clear = _namespace(directory, parts)
    subjects = {name: _timed(statement, names, clear) for name, statement in {**_OURS, **_THEIRS}.items()}
    with without_gc():
        found = take_turns(subjects, _QUICK_ROUNDS if run.quick else _ROUNDS, run.say)
    group = "One thread, nothing exported"
    rows = [
        against(_SAMPLE, "ns", found[_SAMPLE], peer, found[peer], group=group, budget=budget)
        for peer, budget in zip(_THEIRS, [_SAMPLE_BUDGET, *[None] * (len(_THEIRS) - 1)], strict=True)
    ]
    rows += [
        against(_EVENT, "ns", found[_EVENT], peer, found[peer], group=group, budget=budget)
        for peer, budget in zip(_PEERS_OF_AN_EVENT, [_EVENT_BUDGET, None, None, None], strict=True)
    ]
    return rows


def _timed(statement: str, names: Mapping[str, Any], clear: Callable[[], None]) -> Callable[[], float]:
    """Return a function that measures the nanoseconds of one execution."""
    # Names become locals of the loop, as they are in a hook.
    setup = "; ".join(f"{name} = {name}_" for name in names)
    bound = {f"{name}_": value for name, value in names.items()}
    # The thread's CPU time: what other processes took of the core meanwhile is left out.
    timer = timeit.Timer(statement, setup, time.thread_time, globals=bound)

    def once() -> float:
        clear()
        return timer.timeit(_PER_ROUND) / _PER_ROUND * _NS

    return once


def _namespace(directory: Path, parts: ExitStack) -> tuple[dict[str, Any], Callable[[], None]]:
    """Return the statements' namespace, and a function that discards their leftovers."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from penstock.instrumentation.telemetry.emitter import Emitter
    from prometheus_client import CollectorRegistry, Counter, Histogram

    class Forget(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:  # noqa: ARG002  (the SDK's signature)
            return SpanExportResult.SUCCESS

    # The hooks' emitter; no thread drains it, so it must not wake one.
    emitter = Emitter(lambda: None, capacity=_CAPACITY)
    emitter.saturate()
    registry = CollectorRegistry()
    traces = provider(Forget(), queue=_CAPACITY, batch=_CAPACITY, delay=3600)
    parts.callback(traces.shutdown)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    parts.callback(meters.shutdown)
    handler = logging.FileHandler(directory / "log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    parts.callback(handler.close)
    log = logging.Logger("benchmark")  # noqa: LOG001  (without the root's handlers)
    log.addHandler(handler)
    receiver = parts.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.bind(("127.0.0.1", 0))
    sender = parts.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def clear() -> None:
        emitter.events.clear()
        emitter.transfers.clear()
        traces.force_flush()
        os.truncate(handler.baseFilename, 0)

    return {
        "emit_transfer": emitter.emit_transfer,
        "emit_event": emitter.emit_event,
        "end": 1_750_000_000_000_000_000,
        "size": 393_216,
        "peer": ATTRIBUTES["penstock.peer"],
        "request": ATTRIBUTES["gen_ai.request.id"],
        "text": "Connection refused by 10.0.0.7:5600",
        "counter": Counter("a", "a", registry=registry),
        "histogram": Histogram("b", "b", registry=registry),
        "labelled_counter": Counter("c", "c", ("channel", "connector", "peer"), registry=registry),
        "labelled_histogram": Histogram("d", "d", ("channel", "peer"), registry=registry),
        "sizes": Histogram("e", "e", ("channel", "peer"), registry=registry),
        "otel_counter": meters.get_meter("benchmark").create_counter("f"),
        "tracer": traces.get_tracer("benchmark"),
        "attributes": ATTRIBUTES,
        "log": log,
        "send": sender.sendto,
        "agent": receiver.getsockname(),
    }, clear
