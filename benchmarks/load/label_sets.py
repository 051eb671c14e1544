"""The cost of label sets in memory, scrape time and saved state: ``python -m benchmarks.series``.

Series of counters and histograms of peers in as many engines as it takes at 1,000 peers each; in this process, without
the network.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from penstock.agent.batch.columns import BatchColumns
from penstock.agent.ingest.admission import resident_bytes
from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.exemplars import Exemplars
from penstock.agent.metrics.gatherer import Gatherer
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources.registry import Registry
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import add_transfers, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable

LABEL_SETS = (100, 1_000, 10_000, 50_000)
# Of each peer: transfers, their duration, their failures.
_METRICS = 3
_PEERS = 1_000
_MIB = 1 << 20


def fill(aggregator: Aggregator, label_sets: int) -> None:
    """Add this number of label sets to *aggregator*."""
    for number in range(label_sets // _METRICS):
        engine, peer = divmod(number, _PEERS)
        source = Source(epoch=engine + 1, key=EngineKey("", str(engine)), process="engine-core")
        address = f"10.0.{peer // 250}.{peer % 250}:5600"
        batch = add_transfers(Batch(events=[transfer_failure("r", peer=address)]), ["r"], peer=address)
        aggregator.apply(source, BatchColumns(batch))


def timed(work: Callable[[], object], times: int = 3) -> float:
    """Return the median milliseconds of a call."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(found)


def main() -> None:
    """Measure and print the table."""
    print("| label sets | lines of a scrape | memory MiB | render ms | saved KiB | save ms |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in LABEL_SETS:
        before = resident_bytes()
        aggregator = Aggregator()
        fill(aggregator, count)
        held = (resident_bytes()) - before
        exposition = Gatherer(aggregator, Registry(time.time_ns).sources, Exemplars(), AgentMetrics(0))
        body, _ = exposition.render("text/plain")
        render, save = timed(lambda: exposition.render("text/plain")), timed(aggregator.dump)  # noqa: B023
        print(
            f"| {count:,} | {body.count(b'penstock_'):,} | {held / _MIB:.0f} | {render:.0f} "
            f"| {len(aggregator.dump()) / 1024:,.0f} | {save:.0f} |"
        )


if __name__ == "__main__":
    main()
