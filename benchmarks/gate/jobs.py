"""The jobs whose instructions are counted: the product's own functions on fixed inputs, on one thread.

``python -m benchmarks.gate.jobs JOB EVENTS`` does one of them under callgrind: once to warm up, and once to be counted.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.interleave import without_gc
from benchmarks.replay.meters import meter as meter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from benchmarks.replay.meters import Meter

    Job: TypeAlias = Callable[[Meter, Path], None]
    """Counts with the meter; the path is of the recorded events."""

PLAIN: Final = "/without"
"""Ends the label of what is counted without Penstock; its count is taken off."""

_EMITTED: Final = 2_000
_ENCODED: Final = 512
_BATCHES: Final = 8
_LABEL_SETS: Final = 166
"""About a thousand lines of an exposition."""
_SCRAPES: Final = 4
_LIMIT: Final = 1 << 30
_PROCESSOR_SECONDS: Final = 900
"""Five times what the longest job takes under callgrind."""
_NOW: Final = 1_750_000_000_000_000_000
_NAME: Final = "chatcmpl-00000000-0a1b2c3d"


def emit(meter: Meter, _: Path) -> None:
    """Emit samples and events as hooks do; nothing drains them."""
    from penstock.instrumentation.telemetry.emitter import Emitter

    from tests.support.agent.entries import emit_closed, emit_transfer

    emitter: Any = Emitter(lambda: None, capacity=_EMITTED)
    emitter.saturate()

    def work() -> None:
        emitter.events.clear()
        emitter.transfers.clear()
        for _ in range(_EMITTED):
            emit_transfer(emitter, _NAME)
            emit_closed(emitter, _NAME)

    _count(meter, "emit", work)


def encoding(meter: Meter, _: Path) -> None:
    """Encode a full batch of events and one of samples to the bytes that are sent."""
    from penstock.instrumentation.core import DropCounter
    from penstock.instrumentation.telemetry.emitter import Emitter
    from penstock.instrumentation.telemetry.encoder import frame, seal

    from tests.support.agent.entries import emit_closed, emit_transfer

    emitter: Any = Emitter(lambda: None)
    emitter.saturate()
    for number in range(_ENCODED):
        emit_transfer(emitter, f"chatcmpl-{number:08x}-0a1b2c3d")
        emit_closed(emitter, f"chatcmpl-{number:08x}-0a1b2c3d")
    events, transfers = list(emitter.events), list(emitter.transfers)

    def work() -> None:
        for some_events, some_transfers in ((events, []), ([], transfers)):
            (batch,) = seal(some_events, some_transfers, [], DropCounter())
            frame(1, 1, batch)

    _count(meter, "encoding", work)


def ingest(meter: Meter, _: Path) -> None:
    """Check full batches as engines send them, commit each to a journal, and count it for the metrics."""
    from penstock.agent.batch import BatchColumns
    from penstock.agent.ingest.message_limits import check_batch, parse_message
    from penstock.agent.journal.commit.transaction import Transaction
    from penstock.agent.journal.database import open_database
    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.agent.model import EngineKey, Source

    from benchmarks.load.mixes import engine

    rng = random.Random(0)
    source = Source(epoch=1, key=EngineKey("", "0"), process="engine-core")
    bodies = []
    for seq in range(1, 2 * _BATCHES + 1):
        batch = engine(rng)
        batch.epoch, batch.seq = source.epoch, seq
        bodies.append(batch.SerializeToString())
    left = iter(bodies)
    watermarks: dict[int, int] = {}
    aggregator = Aggregator()
    with tempfile.TemporaryDirectory(prefix="penstock-gate-") as directory:
        database = open_database(Path(directory), "", _LIMIT).database

        def work() -> None:
            for _ in range(_BATCHES):
                body = next(left)
                batch = parse_message(body)
                contents = BatchColumns(batch, body)
                check_batch(contents, body)
                transaction = Transaction(database, watermarks)
                database.execute("BEGIN IMMEDIATE")
                transaction.append(source, batch, body, _NOW, contents)
                transaction.finish()
                database.execute("COMMIT")
                watermarks.update(transaction.staged)
                aggregator.apply(source, contents)

        _count(meter, "ingest", work)
        database.close()


def scrape(meter: Meter, _: Path) -> None:
    """Render an exposition of about a thousand series."""
    from penstock.agent.metrics.agent_metrics import AgentMetrics
    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.agent.metrics.gatherer import Exemplars, Gatherer
    from penstock.agent.sources.registry import Registry

    from benchmarks.load.label_sets import fill

    aggregator = Aggregator()
    fill(aggregator, _LABEL_SETS)
    gatherer = Gatherer(aggregator, Registry(lambda: _NOW).sources, Exemplars(), AgentMetrics(0))

    def work() -> None:
        for _ in range(_SCRAPES):
            gatherer.render("text/plain")

    _count(meter, "scrape", work)


def step(meter: Meter, events: Path) -> None:
    """Play a recorded decode engine's requests, which load over NIXL, on vLLM's scheduler: with Penstock's hooks and without."""
    from penstock.instrumentation.runtime import runtime
    from penstock.instrumentation.vllm.kv.hook import KvConnectorHook

    from benchmarks.replay.player import Player
    from benchmarks.replay.scenarios import SCENARIOS
    from benchmarks.replay.traffic import parse

    runtime.active = True
    runtime.emitter.saturate()
    (scenario,) = (each for each in SCENARIOS if each.kind == "load")
    arrivals = scenario.arrivals({"decode": parse(json.loads(events.read_text())["events"], "decode")})
    hook = KvConnectorHook()
    with tempfile.TemporaryDirectory(prefix="penstock-gate-") as directory:
        plain = Player(scenario, Path(directory), instrumented=False)
        hook.install()
        hooked = Player(scenario, Path(directory), instrumented=True)
        _stand_still()
        for player, label in ((plain, f"step{PLAIN}"), (hooked, "step")):
            player.play(arrivals, meter_of("blocks"), "warm-up")
            player.play(arrivals, meter, label)
        hook.uninstall()


JOBS: Final[Mapping[str, Job]] = {
    "step": step,
    "emit": emit,
    "encoding": encoding,
    "ingest": ingest,
    "scrape": scrape,
}
"""By the gate's name; the longest first, because two are counted at a time."""


def _stand_still() -> None:
    """Replace the clocks, so that a machine that is slow meanwhile has no step with more to do; each look is a microsecond later."""
    for name in ("monotonic", "perf_counter", "time"):
        setattr(time, name, itertools.count(_NOW / 1e9, 1e-6).__next__)
        setattr(time, f"{name}_ns", itertools.count(_NOW, 1_000).__next__)


def _count(meter: Meter, label: str, work: Callable[[], object]) -> None:
    work()
    meter.begin(label)
    meter.on()
    work()
    meter.off()
    meter.end(label)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_SECONDS, _PROCESSOR_SECONDS))
    with without_gc():
        JOBS[sys.argv[1]](meter_of("callgrind"), Path(sys.argv[2]))
