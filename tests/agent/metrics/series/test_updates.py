"""Which series each kind of event belongs to."""

from __future__ import annotations

import math
from typing import Any

import pytest
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.batch.rows import transfer_rows
from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.series.bulk_updates import probe_bulks, transfer_bulks
from penstock.agent.metrics.series.updates import event_updates, transfer_updates
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.agent.batches import PEER, TIME, event, transfer_failure
from tests.support.agent.metric_logs import SECOND, probes, transfers

KV = common.CHANNEL_KV


def updates_of(entry: events.Event) -> list[tuple[Any, ...]]:
    """Return what an event does."""
    return [tuple(update) for update in event_updates(entry.WhichOneof("body") or "", entry)]


def outcome(**body: Any) -> events.Event:
    """Build an outcome of a failed handshake."""
    return event(
        "load_outcome",
        "r",
        **{
            "channel": KV,
            "decided_by": common.DECIDED_BY_POLICY,
            "mode": common.FAILURE_MODE_HANDSHAKE,
            "peer": {"address": PEER},
            "tokens_recomputed": 412,
            **body,
        },
    )


FAILED = transfer_failure("r")
REHEARSED = transfer_failure("r", peer="")
REHEARSED.rehearsal = True

CASES = {
    "failure": (
        FAILED,
        [(from_log.TRANSFER_FAILURES, ("kv", "NixlConnector", "handshake", "refused", PEER, "false"), 1)],
    ),
    "rehearsed failure of an unknown peer": (
        REHEARSED,
        [(from_log.TRANSFER_FAILURES, ("kv", "NixlConnector", "handshake", "refused", "unknown", "true"), 1)],
    ),
    "failure of a newer engine": (
        transfer_failure("r", mode=99),
        [(from_log.TRANSFER_FAILURES, ("kv", "NixlConnector", "unknown", "refused", PEER, "false"), 1)],
    ),
    "late read": (
        transfer_failure("r", mode=common.FAILURE_MODE_LATE_READ, error_type=common.ERROR_TYPE_OTHER),
        [
            (from_log.TRANSFER_FAILURES, ("kv", "NixlConnector", "late_read", "other", PEER, "false"), 1),
            (from_log.LATE_READS, (PEER,), 1),
        ],
    ),
    "recomputed": (
        outcome(outcome=common.OUTCOME_RECOMPUTED),
        [
            (from_log.LOAD_OUTCOMES, ("kv", "recomputed", "policy", "handshake", PEER, "false"), 1),
            (from_log.RECOMPUTED_TOKENS, ("kv", "handshake", PEER, "false"), 412),
        ],
    ),
    "recomputed encoder outputs": (
        outcome(channel=common.CHANNEL_EC, outcome=common.OUTCOME_RECOMPUTED, items_recomputed=3),
        [
            (from_log.LOAD_OUTCOMES, ("ec", "recomputed", "policy", "handshake", PEER, "false"), 1),
            (from_log.RECOMPUTED_TOKENS, ("ec", "handshake", PEER, "false"), 412),
            (from_log.RECOMPUTED_ITEMS, ("ec", "handshake", PEER, "false"), 3),
        ],
    ),
    "failed outcomes recompute no items": (
        outcome(channel=common.CHANNEL_EC, outcome=common.OUTCOME_FAILED, items_recomputed=3),
        [(from_log.LOAD_OUTCOMES, ("ec", "failed", "policy", "handshake", PEER, "false"), 1)],
    ),
    "failed outcomes recompute nothing": (
        outcome(outcome=common.OUTCOME_FAILED),
        [(from_log.LOAD_OUTCOMES, ("kv", "failed", "policy", "handshake", PEER, "false"), 1)],
    ),
    "deferral": (
        event(
            "deferral_end",
            "r",
            time_ns=TIME + SECOND,
            reason=common.DEFERRAL_REASON_ENCODER_CACHE,
            ending=common.DEFERRAL_ENDING_TIMEOUT,
            peer={"address": PEER},
            start_time_unix_nano=TIME,
        ),
        [
            (from_log.DEFERRALS, ("encoder_cache", "timeout", PEER), 1),
            (from_log.DEFERRED_TIME, ("encoder_cache",), SECOND),
        ],
    ),
    "deferral over a clock set back": (
        event(
            "deferral_end",
            "r",
            reason=common.DEFERRAL_REASON_GRAMMAR,
            ending=common.DEFERRAL_ENDING_READY,
            start_time_unix_nano=TIME + 1,
        ),
        [(from_log.DEFERRALS, ("grammar", "ready", "unknown"), 1), (from_log.DEFERRED_TIME, ("grammar",), 0)],
    ),
    "deferral without a start": (
        event(
            "deferral_end", "r", reason=common.DEFERRAL_REASON_OTHER, ending=common.DEFERRAL_ENDING_ABORTED
        ),
        [(from_log.DEFERRALS, ("other", "aborted", "unknown"), 1)],
    ),
    "handshake": (
        event(
            "handshake",
            peer={"address": PEER},
            queued_time_unix_nano=TIME,
            start_time_unix_nano=TIME + 3,
            end_time_unix_nano=TIME + 10,
        ),
        [(from_log.HANDSHAKE_DURATION, (PEER,), 7), (from_log.HANDSHAKE_QUEUE, (PEER,), 3)],
    ),
    "handshake that never began": (
        event("handshake", peer={"address": PEER}, queued_time_unix_nano=TIME, end_time_unix_nano=TIME + 10),
        [],
    ),
    "held up by another peer": (
        event(
            "transfer_delayed",
            "r",
            channel=common.CHANNEL_KV,
            peer={"address": PEER},
            delay_nano=5 * SECOND,
            caused_by_peer={"address": "10.0.0.9:5600"},
        ),
        [(from_log.COLLATERAL_DELAY, ("kv", "10.0.0.9:5600"), 5 * SECOND)],
    ),
    "held up for longer than there was time": (
        event("transfer_delayed", "r", channel=common.CHANNEL_KV, delay_nano=TIME + 1),
        [],
    ),
    "a failed rebalance": (
        event(
            "eplb_rebalance",
            result=common.TRANSFER_RESULT_ERROR,
            duration_nano=TIME + 1,
            pause_nano=2,
            balancedness_before=0.5,
            balancedness_after=0.9,
        ),
        [
            (from_log.EPLB_REBALANCES, ("unspecified", "error"), 1),
            (from_log.EPLB_BALANCEDNESS, ("before",), SECOND // 2),
            *[(from_log.EPLB_EXPERTS, (source,), 0) for source in ("unchanged", "local", "remote")],
        ],
    ),
    "held up by nobody knows whom": (
        event("transfer_delayed", "r", channel=common.CHANNEL_KV, delay_nano=1),
        [(from_log.COLLATERAL_DELAY, ("kv", "unknown"), 1)],
    ),
    "policy taken": (
        event("policy_applied", accepted=True, cause="push"),
        [(from_log.POLICY_UPDATES, ("accepted", "push"), 1)],
    ),
    "policy refused": (
        event("policy_applied", accepted=False),
        [(from_log.POLICY_UPDATES, ("rejected", "unknown"), 1)],
    ),
    "quarantine opens": (
        event(
            "quarantine_changed",
            peer={"address": PEER},
            state=events.QUARANTINE_STATE_OPEN,
            previous=events.QUARANTINE_STATE_HALF_OPEN,
            reason="probe_failed",
        ),
        [(from_log.QUARANTINES, (PEER, "probe_failed", "false"), 1)],
    ),
    "quarantine lifts": (
        event("quarantine_changed", peer={"address": PEER}, state=events.QUARANTINE_STATE_CLOSED),
        [],
    ),
    "rebalance": (
        event(
            "eplb_rebalance",
            trigger=events.EPLB_TRIGGER_INTERVAL,
            result=common.TRANSFER_RESULT_OK,
            duration_nano=SECOND,
            pause_nano=5,
            balancedness_before=0.5,
            balancedness_after=0.75,
            layers=[
                {"experts_unchanged": 3, "experts_received_locally": 1},
                {"experts_unchanged": 2, "experts_received_remotely": 2},
            ],
        ),
        [
            (from_log.EPLB_REBALANCES, ("interval", "ok"), 1),
            (from_log.EPLB_REBALANCE_DURATION, (), SECOND),
            (from_log.EPLB_PAUSE, (), 5),
            (from_log.EPLB_BALANCEDNESS, ("before",), NANOS // 2),
            (from_log.EPLB_BALANCEDNESS, ("after",), NANOS * 3 // 4),
            (from_log.EPLB_EXPERTS, ("unchanged",), 5),
            (from_log.EPLB_EXPERTS, ("local",), 1),
            (from_log.EPLB_EXPERTS, ("remote",), 2),
        ],
    ),
    "rebalance without a token": (
        event("eplb_rebalance", balancedness_before=math.nan, balancedness_after=math.inf),
        [
            (from_log.EPLB_REBALANCES, ("unspecified", "unspecified"), 1),
            (from_log.EPLB_REBALANCE_DURATION, (), 0),
            (from_log.EPLB_PAUSE, (), 0),
            *((from_log.EPLB_EXPERTS, (source,), 0) for source in ("unchanged", "local", "remote")),
        ],
    ),
    "rebalance with ratios that are none": (
        event("eplb_rebalance", balancedness_before=1.4e303, balancedness_after=-0.5),
        [
            (from_log.EPLB_REBALANCES, ("unspecified", "unspecified"), 1),
            (from_log.EPLB_REBALANCE_DURATION, (), 0),
            (from_log.EPLB_PAUSE, (), 0),
            *((from_log.EPLB_EXPERTS, (source,), 0) for source in ("unchanged", "local", "remote")),
        ],
    ),
    "closed request": (event("request_closed", "r", prompt_tokens=5), []),
    "event of a newer engine": (events.Event(time_unix_nano=TIME), []),
}


@pytest.mark.parametrize(("entry", "updates"), CASES.values(), ids=CASES)
def test_events(entry: events.Event, updates: list[tuple[Any, ...]]) -> None:
    """Each event does exactly this."""
    assert updates_of(entry) == updates


@pytest.mark.parametrize("entry", [entry for entry, _ in CASES.values()], ids=list(CASES))
def test_labels_fit_the_catalogue(entry: events.Event) -> None:
    """Every update has a value for each label of its metric."""
    for metric, labels, value in updates_of(entry):
        assert len(labels) == len(metric.labels)
        assert value >= 0


def test_transfers() -> None:
    """A good transfer counts thrice, a failed one once."""
    batch = transfers([(7, 9, PEER, common.TRANSFER_RESULT_OK), (7, 9, "", common.TRANSFER_RESULT_ERROR)])
    good, bad = ([tuple(update) for update in transfer_updates(row)] for row in transfer_rows(batch))
    assert good == [
        (from_log.TRANSFERS, ("kv", "NixlConnector", "receive", PEER, "ok"), 1),
        (from_log.TRANSFER_DURATION, ("kv", PEER), 7),
        (from_log.TRANSFER_SIZE, ("kv", "receive"), 9),
    ]
    assert bad == [(from_log.TRANSFERS, ("kv", "NixlConnector", "receive", "unknown", "error"), 1)]


def test_what_is_not_known_of_a_transfer_is_no_observation() -> None:
    """A duration or a size of 0 counts the transfer and says nothing about it, one by one and in bulk."""
    batch = transfers([(0, 9, PEER, common.TRANSFER_RESULT_OK), (7, 0, PEER, common.TRANSFER_RESULT_OK)])
    updates = [update.metric for row in transfer_rows(batch) for update in transfer_updates(row)]
    assert updates == [
        from_log.TRANSFERS,
        from_log.TRANSFER_SIZE,
        from_log.TRANSFERS,
        from_log.TRANSFER_DURATION,
    ]
    assert [(bulk.metric, bulk.amount, bulk.values) for bulk in transfer_bulks(BatchColumns(batch))] == [
        (from_log.TRANSFERS, 2, []),
        (from_log.TRANSFER_DURATION, 0, [7]),
        (from_log.TRANSFER_SIZE, 0, [9]),
    ]
    (nothing,) = transfer_bulks(BatchColumns(transfers([(0, 0, PEER, common.TRANSFER_RESULT_OK)])))
    assert nothing.metric is from_log.TRANSFERS


def test_probes() -> None:
    """Probes count by connector, peer and result."""
    rows = [(PEER, common.PROBE_RESULT_HIT), (PEER, common.PROBE_RESULT_MISS), ("", common.PROBE_RESULT_MISS)]
    assert [(bulk.metric, bulk.labels, bulk.amount) for bulk in probe_bulks(BatchColumns(probes(rows)))] == [
        (from_log.CACHE_PROBES, ("ZmqECConnector", PEER, "hit"), 1),
        (from_log.CACHE_PROBES, ("ZmqECConnector", PEER, "miss"), 1),
        (from_log.CACHE_PROBES, ("ZmqECConnector", "unknown", "miss"), 1),
    ]
