"""Series of counters and histograms of peers, in as many engines as it takes at 1,000 peers each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.batch.columns import BatchColumns
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import add_transfers, transfer_failure

if TYPE_CHECKING:
    from penstock.agent.metrics.aggregator import Aggregator

# Of each peer: transfers, their duration, their failures.
_METRICS = 3
_PEERS = 1_000


def fill(aggregator: Aggregator, label_sets: int) -> None:
    """Add this number of label sets to *aggregator*."""
    for number in range(label_sets // _METRICS):
        engine, peer = divmod(number, _PEERS)
        source = Source(epoch=engine + 1, key=EngineKey("", str(engine)), process="engine-core")
        address = f"10.0.{peer // 250}.{peer % 250}:5600"
        batch = add_transfers(Batch(events=[transfer_failure("r", peer=address)]), ["r"], peer=address)
        aggregator.apply(source, BatchColumns(batch))
