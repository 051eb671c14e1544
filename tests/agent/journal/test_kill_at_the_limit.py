"""``kill -9`` while the log is trimmed: counters stay exact although most of what they counted is deleted."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import pytest

EVENTS = 5

# One life: restore, say what is there, then append for ever and say what was acknowledged.
CHILD = """
import asyncio, sys
import structlog
from pathlib import Path
from penstock.agent.state import budget
from penstock.agent.metrics import Aggregator, AggregatorCheckpoint
from penstock.agent.journal.database import schema
from penstock.agent.journal.journal import Journal
from penstock.agent.metrics.catalogue.from_log import TRANSFER_FAILURES
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1.ingest_pb2 import Batch
from tests.support.agent.batches import noise, transfer_failure

# Standard output is for what the test reads.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
schema.MIN_LIMIT = 0
budget.Budget.reserve = 65536
source = Source(epoch=7, key=EngineKey("", "0"), process="engine-core")

async def main():
    journal = Journal.open(Path(sys.argv[1]), limit=2 << 20)
    keeper = AggregatorCheckpoint(journal, aggregator := Aggregator())
    await keeper.restore()
    counted = sum(row.total for engine in aggregator.engines() for row in engine.rows.get(TRANSFER_FAILURES, ()))
    seq = await journal.open_source(source)
    print("begin", seq, counted, journal.usage.pruned, flush=True)
    while True:
        batch = Batch(epoch=7, seq=seq + 1)
        batch.events.extend(transfer_failure(f"{seq}-{n}", error_text=noise(4000)) for n in range(int(sys.argv[2])))
        seq = await journal.append(source, batch, batch.SerializeToString())
        print("acked", seq, flush=True)
        if seq % 7 == 0:
            keeper.save()

asyncio.run(main())
"""


# The log is trimmed from about a hundred batches on.
@pytest.mark.parametrize(
    ("kills", "lives"), [(3, (100, 150)), pytest.param(10, (20, 90), marks=pytest.mark.long)]
)
def test_kills_while_the_log_is_trimmed(tmp_path, kills, lives):
    """After each kill the counters equal the commits, and every acknowledged batch was committed."""
    chance = random.Random(6)
    acknowledged, pruned = 0, 0
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(EVENTS)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            said = (line.split() for line in child.stdout if line.startswith(("begin ", "acked ")))
            watermark, counted, pruned = map(int, next(said)[1:])
            assert watermark >= acknowledged
            assert counted == watermark * EVENTS
            for _ in range(chance.randrange(*lives)):
                acknowledged = int(next(said)[1])
            child.send_signal(signal.SIGKILL)
    assert pruned > acknowledged // 4
