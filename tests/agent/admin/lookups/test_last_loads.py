"""When the loads of an engine last ended in each way: what 'agentctl doctor' looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.engine_counters import last_loads
from penstock.agent.metrics.aggregator import EngineRows
from penstock.agent.metrics.catalogue import from_log as c
from penstock.agent.metrics.series.engine import Row
from penstock.agent.model import EngineKey
from penstock.proto.v1.common_pb2 import CHANNEL_EC, CHANNEL_KV, DECIDED_BY_POLICY, DECIDED_BY_QUARANTINE

if TYPE_CHECKING:
    from penstock.agent.metrics.catalogue.metric import Metric


def _rows(*rows: tuple[Metric, str, int]) -> EngineRows:
    found: dict[Metric, list[Row]] = {}
    for metric, labels, touched in rows:
        found.setdefault(metric, []).append(Row(tuple(labels.split()), 1, (), touched))
    return EngineRows(EngineKey("", "0"), 0, found)


def test_each_way_has_its_newest_time() -> None:
    """Loads that were received; failures that something decided, not vLLM itself."""
    kv, ec = last_loads(
        _rows(
            (c.TRANSFERS, "kv NixlConnector receive p:1 ok", 10),
            (c.TRANSFERS, "kv NixlConnector receive p:2 ok", 20),
            (c.TRANSFERS, "kv NixlConnector receive p:2 error", 90),
            (c.TRANSFERS, "kv NixlConnector send p:3 ok", 91),
            (c.TRANSFERS, "eplb x receive rank:1 ok", 92),
            (c.LOAD_OUTCOMES, "kv recomputed policy handshake p:1 false", 30),
            (c.LOAD_OUTCOMES, "kv failed policy handshake p:1 false", 50),
            (c.LOAD_OUTCOMES, "kv failed quarantine handshake p:1 true", 60),
            (c.LOAD_OUTCOMES, "kv failed vllm handshake p:1 false", 93),
            (c.LOAD_OUTCOMES, "ec failed policy load p:9 false", 70),
            (c.LOAD_OUTCOMES, "ec failed a-newer-word load p:9 false", 60),
        )
    )
    assert (kv.channel, kv.succeeded_time_unix_nano, kv.recomputed_time_unix_nano) == (CHANNEL_KV, 20, 30)
    assert (kv.failed_time_unix_nano, kv.decided_by, kv.rehearsal) == (60, DECIDED_BY_QUARANTINE, True)
    assert (ec.channel, ec.succeeded_time_unix_nano, ec.failed_time_unix_nano) == (CHANNEL_EC, 0, 70)
    assert (ec.decided_by, ec.rehearsal) == (DECIDED_BY_POLICY, False)


def test_an_engine_without_loads_has_none() -> None:
    """Nor one whose labels are of another version."""
    assert last_loads(_rows()) == []
    assert len(last_loads(_rows((c.LOAD_OUTCOMES, "kv failed a-newer-word load p:9 false", 5)))) == 1
