"""When the loads of an engine last ended in each way, from its counters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.metrics.catalogue import from_log as c
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EC, CHANNEL_KV, DecidedBy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.metrics import EngineRows, Metric, Row

_CHANNELS = {"kv": CHANNEL_KV, "ec": CHANNEL_EC}
_VLLM = "vllm"


def last_loads(engine: EngineRows) -> list[admin.LastLoads]:
    """Return the times of each channel whose loads have ended at all; *engine* has ``ENGINE_METRICS``."""
    found = {word: admin.LastLoads(channel=channel) for word, channel in _CHANNELS.items()}
    for labels, row in _rows(engine, c.TRANSFERS):
        loads = found.get(labels["channel"])
        if loads is not None and labels["direction"] == "receive" and labels["result"] == "ok":
            loads.succeeded_time_unix_nano = max(loads.succeeded_time_unix_nano, row.touched)
    for labels, row in _rows(engine, c.LOAD_OUTCOMES):
        loads = found.get(labels["channel"])
        if loads is None:
            continue
        if labels["outcome"] != "failed":
            loads.recomputed_time_unix_nano = max(loads.recomputed_time_unix_nano, row.touched)
        elif labels["decided_by"] != _VLLM and row.touched > loads.failed_time_unix_nano:
            loads.failed_time_unix_nano = row.touched
            loads.decided_by = _decider(labels["decided_by"])  # type: ignore[assignment]
            loads.rehearsal = labels["rehearsal"] == "true"
    return [loads for loads in found.values() if len(loads.ListFields()) > 1]


def _rows(engine: EngineRows, metric: Metric) -> Iterator[tuple[dict[str, str], Row]]:
    for row in engine.rows.get(metric, ()):
        yield dict(zip(metric.labels, row.labels, strict=True)), row


def _decider(word: str) -> int:
    """Return the value of a label; 0 for one of a newer version, or of values folded into one."""
    try:
        return number(DecidedBy, word)
    except ValueError:
        return 0
