"""An engine's counters: totals over peers and reasons, and when loads last ended in each way. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.messages import clamp_unsigned
from penstock.agent.metrics.catalogue import from_log as c
from penstock.agent.policy.manifest import engine_identity
from penstock.agent.policy.rollouts import EngineCounts
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EC, CHANNEL_KV, DecidedBy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.metrics import Aggregator, EngineRows, Metric, Row
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target

# The metrics that :func:`engine_counters` reads.
ENGINE_METRICS = frozenset(
    {c.TRANSFERS, c.TRANSFER_SIZE, c.TRANSFER_FAILURES, c.RECOMPUTED_TOKENS, c.LOAD_OUTCOMES}
)


_CHANNELS = {"kv": CHANNEL_KV, "ec": CHANNEL_EC}
_VLLM = "vllm"


def engine_counters(engine: EngineRows) -> admin.EngineCounters:
    """Return the totals of one engine's series."""

    def total(metric: Metric, takes: Callable[[dict[str, str]], bool] = lambda _: True) -> int:
        return clamp_unsigned(
            sum(
                row.total
                for row in engine.rows.get(metric, ())
                if takes(dict(zip(metric.labels, row.labels, strict=True)))
            )
        )

    return admin.EngineCounters(
        transfers_ok=total(c.TRANSFERS, lambda labels: labels["result"] == "ok"),
        transfers_failed=total(c.TRANSFERS, lambda labels: labels["result"] != "ok"),
        bytes=total(c.TRANSFER_SIZE),
        failures=total(c.TRANSFER_FAILURES),
        recomputed_tokens=total(c.RECOMPUTED_TOKENS),
        requests_failed=total(c.LOAD_OUTCOMES, lambda labels: labels["outcome"] == "failed"),
    )


_COMPARED = frozenset({c.EVENTS, c.LOAD_OUTCOMES, c.DEFERRED_TIME, c.RECOMPUTED_TOKENS})


def compared_counts(aggregator: Aggregator) -> dict[EngineKey, EngineCounts]:
    """Return what each engine has counted of what a roll-out compares, since the state was created; without rehearsals.

    What a fault drill causes is its own, and no policy's. Label sets that are idle count, too, so that none that comes
    back looks new.
    """
    return {engine.key: _compared(engine) for engine in aggregator.engines(_COMPARED, idle=True)}


def _compared(engine: EngineRows) -> EngineCounts:
    def total(metric: Metric, **wanted: str) -> int:
        places = [(metric.labels.index(label), value) for label, value in wanted.items()]
        return sum(
            row.total
            for row in engine.rows.get(metric, ())
            if all(row.labels[place] == value for place, value in places)
        )

    return EngineCounts(
        requests=total(c.EVENTS, kind="request_closed"),
        failed=total(c.LOAD_OUTCOMES, outcome="failed", rehearsal="false"),
        deferred=total(c.DEFERRED_TIME) / c.DEFERRED_TIME.scale,
        recomputed=total(c.RECOMPUTED_TOKENS, rehearsal="false"),
    )


def compared_engine(target: Target, counts: EngineCounts, *, refuses: bool) -> admin.ComparedEngine:
    """Return what the leader of a fleet's roll-out needs of an engine."""
    return admin.ComparedEngine(
        identity=engine_identity(target),
        model=target.model,
        requests=clamp_unsigned(int(counts.requests)),
        failed=clamp_unsigned(int(counts.failed)),
        deferred_seconds=counts.deferred,
        recomputed_tokens=clamp_unsigned(int(counts.recomputed)),
        refuses=refuses,
    )


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
