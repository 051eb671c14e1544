"""The peer's load beside :mod:`benchmarks.load.sources`'s: the same rate of spans from as many sources, sent every 200 ms.

The bodies are those of ``opentelemetry-sdk``'s exporter; as with our own simulated engines, all sources share one process and one channel.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.instrumentation.telemetry.batcher import URGENT_DELAY

from benchmarks.load.otlp_peer import ATTRIBUTES, SERVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load.otlp_peer import Peer

_METHOD: Final = f"/{SERVICE}/Export"
_MS: Final = 1e3
_MIB: Final = 1 << 20
_MOST: Final = 1_024


@dataclass(frozen=True, slots=True)
class Load:
    """The server's cost: response times in ms, CPU in percent of a core, memory in MiB, bytes on disk a span."""

    answers: Sequence[float]
    cpu: float
    memory: float
    bytes_per_span: float


async def load(peer: Peer, sources: int, rate: float, seconds: float, warm_up: float) -> Load:
    """Send *rate* spans a second in all; what is sent in the first *warm_up* seconds does not count."""
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("benchmark")
    spans = []
    for _ in range(_MOST):
        span = tracer.start_span("kv.load", attributes=ATTRIBUTES)
        span.end()
        spans.append(span)

    async with grpc.aio.insecure_channel(peer.address) as channel:
        export: Any = channel.unary_unary(_METHOD)

        async def all_of_them(seconds: float) -> list[float]:
            until = time.monotonic() + seconds
            each = rate / sources
            found = await asyncio.gather(*(_source(export, spans, each, until) for _ in range(sources)))
            return [answer for answers in found for answer in answers]

        await all_of_them(warm_up)
        before, began = await asyncio.to_thread(peer.used), time.monotonic()
        answers = await all_of_them(seconds)
        took = time.monotonic() - began
        after = await asyncio.to_thread(peer.used)
    return Load(
        answers,
        100 * (after.cpu_seconds - before.cpu_seconds) / took,
        after.memory / _MIB,
        (after.disk - before.disk) / (after.spans - before.spans),
    )


async def _source(export: Any, spans: Sequence[Any], per_second: float, until: float) -> list[float]:
    """Run one source; return the milliseconds of each call, of one at least."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    sent = 0
    answers: list[float] = []
    await asyncio.sleep(random.random() * URGENT_DELAY)
    start = time.monotonic()
    # A machine that stands still for the whole time has sent nothing by its end.
    while (now := time.monotonic()) < until or not answers:
        due = min(int((now - start) * per_second) - sent, len(spans))
        if due:
            body = encode_spans(spans[:due]).SerializeToString()
            began = time.monotonic()
            await export(body)
            answers.append((time.monotonic() - began) * _MS)
            sent += due
        await asyncio.sleep(max(URGENT_DELAY, 1 / per_second if not due else 0))
    return answers
