"""What a roll-out compares of an engine's series: without rehearsals, and with label sets that are idle."""

from __future__ import annotations

from penstock.agent.admin.lookups.engine_counters import compared_counts
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.series.engine import IDLE_NANO
from penstock.agent.policy.rollouts.comparison import EngineCounts
from penstock.proto.v1.common_pb2 import OUTCOME_FAILED
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import TIME
from tests.support.agent.stories import DECODE_CORE, closed, outcome


def test_what_a_drill_causes_is_not_compared() -> None:
    """It is its own, in whichever engines it runs."""
    failed, recomputed = outcome("r1", OUTCOME_FAILED), outcome("r2")
    drilled = [outcome("r3", OUTCOME_FAILED), outcome("r4")]
    for event in drilled:
        event.rehearsal = True
    aggregator = Aggregator()
    aggregator.apply(DECODE_CORE, BatchColumns(Batch(events=[closed("r1"), failed, recomputed, *drilled])))
    assert compared_counts(aggregator) == {DECODE_CORE.key: EngineCounts(1, 1, 0.0, 400)}


def test_a_label_set_that_is_idle_still_counts() -> None:
    """At the cap of label sets; else it would look new when it comes back, in one group of engines."""
    aggregator = Aggregator(cap=1)
    for number, peer in enumerate(("a:1", "b:1", "a:1")):
        event = outcome(
            f"r{number}", OUTCOME_FAILED, peer={"address": peer}, time_ns=TIME + 2 * number * IDLE_NANO
        )
        aggregator.apply(DECODE_CORE, BatchColumns(Batch(events=[event])))
        assert compared_counts(aggregator)[DECODE_CORE.key].failed == number + 1
