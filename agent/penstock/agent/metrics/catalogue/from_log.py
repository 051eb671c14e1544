"""Metrics aggregated from the log, exact across restarts; and the aggregator's counts about itself."""

from __future__ import annotations

from typing import Final

from penstock.agent.metrics.catalogue.metric import PEER, Metric, MetricKind, seconds
from penstock.proto.names import NANOS

_DURATION = seconds(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DEFERRED = seconds(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST_TOKEN = (*_DURATION, *seconds(60, 120, 300, 600))
_SIZE = tuple(1 << exponent for exponent in range(14, 35, 2))
_RATIO = tuple(tenth * NANOS // 10 for tenth in range(1, 11))

_CONNECTOR_PEER = frozenset({"connector", "peer"})

# --- transfers --------------------------------------------------------------------------------------

TRANSFERS: Final = Metric(
    "penstock_transfers_total",
    MetricKind.COUNTER,
    "Completed transfers, one per transfer handle and rank.",
    ("channel", "connector", "direction", "peer", "result"),
    free=_CONNECTOR_PEER,
)
TRANSFER_DURATION: Final = Metric(
    "penstock_transfer_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time from posting a transfer until its engine saw the end; transfers with result ok only.",
    ("channel", "peer"),
    free=PEER,
    buckets=_DURATION,
    scale=NANOS,
    exemplars=True,
)
TRANSFER_END_UNCERTAINTY: Final = Metric(
    "penstock_transfer_end_uncertainty_seconds_total",
    MetricKind.COUNTER,
    "By how much the transfers that penstock_transfer_duration_seconds sums up may have been shorter: an engine sees an end when it "
    "looks, and the look before found the transfer still running. Engines before this counter do not tell of their looks, and add nothing.",
    ("channel", "peer"),
    free=PEER,
    scale=NANOS,
)
TRANSFER_SIZE: Final = Metric(
    "penstock_transfer_size_bytes",
    MetricKind.HISTOGRAM,
    "Bytes moved by a transfer; transfers with result ok only.",
    ("channel", "direction"),
    buckets=_SIZE,
    exemplars=True,
)
HANDSHAKE_DURATION: Final = Metric(
    "penstock_handshake_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time a handshake with a peer took, failed ones included: all hold the one handshake thread.",
    ("peer",),
    free=PEER,
    buckets=_DURATION,
    scale=NANOS,
    exemplars=True,
)
HANDSHAKE_QUEUE: Final = Metric(
    "penstock_handshake_queue_seconds",
    MetricKind.HISTOGRAM,
    "Time a handshake waited for the handshake thread before it began.",
    ("peer",),
    free=PEER,
    buckets=_DURATION,
    scale=NANOS,
    exemplars=True,
)

COLLATERAL_DELAY: Final = Metric(
    "penstock_collateral_delay_seconds",
    MetricKind.HISTOGRAM,
    "Time transfers were held up by the trouble of another peer, such as its slow handshakes; includes transfers that "
    "were given up meanwhile.",
    ("channel", "caused_by_peer"),
    free=frozenset({"caused_by_peer"}),
    buckets=_DURATION,
    scale=NANOS,
)

# --- failures and what was done about them ----------------------------------------------------------

TRANSFER_FAILURES: Final = Metric(
    "penstock_transfer_failures_total",
    MetricKind.COUNTER,
    "Attempts that went wrong, as seen by each rank; rehearsal is true if a drill caused it.",
    ("channel", "connector", "mode", "error_type", "peer", "rehearsal"),
    free=_CONNECTOR_PEER,
    exemplars=True,
)
LATE_READS: Final = Metric(
    "penstock_late_reads_total",
    MetricKind.COUNTER,
    "Reads of blocks whose lease had expired: the reader may have got another request's data.",
    ("peer",),
    free=PEER,
    exemplars=True,
)
SUSPECT_ANSWERS: Final = Metric(
    "penstock_suspect_answers_total",
    MetricKind.COUNTER,
    "Answers that may be wrong, one per request and reason: computed from blocks that were read late (late_read, "
    "counted where the blocks were) or that a peer wrote to when they were free (late_write), from state that differs "
    "from what was sent but was used (mismatch), read from another engine with the id that the request names (other_engine), from a load that failed and was neither recomputed nor failed "
    "(failed_read), or with NaNs among the logits (nan). Blocks of an engine with other weights are not here, as no engine "
    'knows of them: penstock_condition{kind="weights_differ"} has the engine and the peer.',
    ("reason",),
)
VERIFIED_TRANSFERS: Final = Metric(
    "penstock_verified_transfers_total",
    MetricKind.COUNTER,
    "Loads of requests that the policy's integrity selects, by what their comparison with the sender's digest found.",
    ("channel", "peer", "result"),
    free=PEER,
    exemplars=True,
)
LOAD_OUTCOMES: Final = Metric(
    "penstock_load_outcomes_total",
    MetricKind.COUNTER,
    "Final action on a failed load, one per request and cause; rehearsal is true if a drill caused it.",
    ("channel", "outcome", "decided_by", "mode", "peer", "rehearsal"),
    free=PEER,
    exemplars=True,
)
RECOMPUTED_TOKENS: Final = Metric(
    "penstock_recomputed_tokens_total",
    MetricKind.COUNTER,
    "Prompt tokens computed again because their load failed (outcome recomputed); rehearsal is true if a drill caused it.",
    ("channel", "mode", "peer", "rehearsal"),
    free=PEER,
    exemplars=True,
)
RECOMPUTED_ITEMS: Final = Metric(
    "penstock_recomputed_items_total",
    MetricKind.COUNTER,
    "Encoder outputs computed again because their load failed (outcome recomputed), one per request that needs them; rehearsal is "
    "true if a drill caused it.",
    ("channel", "mode", "peer", "rehearsal"),
    free=PEER,
    exemplars=True,
)

# --- deferrals --------------------------------------------------------------------------------------

DEFERRALS: Final = Metric(
    "penstock_deferrals_total",
    MetricKind.COUNTER,
    "Deferrals that ended; engine_lost if their source ended first.",
    ("reason", "ending", "peer"),
    free=PEER,
    exemplars=True,
)
DEFERRED_TIME: Final = Metric(
    "penstock_request_deferred_time_seconds",
    MetricKind.HISTOGRAM,
    "Time from the start of a deferral to its end.",
    ("reason",),
    buckets=_DEFERRED,
    scale=NANOS,
    exemplars=True,
)

TIME_TO_FIRST_TOKEN: Final = Metric(
    "penstock_time_to_first_token_seconds",
    MetricKind.HISTOGRAM,
    "Time of a request at a gate before its first token; each request counts at every gate, and the sum over the gates is its time to first token.",
    ("gate",),
    buckets=_FIRST_TOKEN,
    scale=NANOS,
    exemplars=True,
)

# --- probes, EPLB, policy, quarantine ---------------------------------------------------------------

CACHE_PROBES: Final = Metric(
    "penstock_cache_probes_total",
    MetricKind.COUNTER,
    "Questions to a remote cache whether it holds an item.",
    ("connector", "peer", "result"),
    free=_CONNECTOR_PEER,
)
EPLB_REBALANCES: Final = Metric(
    "penstock_eplb_rebalances_total",
    MetricKind.COUNTER,
    "Rebalances of experts, one per rank that took part.",
    ("trigger", "result"),
)
EPLB_REBALANCE_DURATION: Final = Metric(
    "penstock_eplb_rebalance_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time a rebalance took on a rank, all layers.",
    buckets=(*_DURATION, *seconds(60, 120)),
    scale=NANOS,
)
EPLB_PAUSE: Final = Metric(
    "penstock_eplb_pause_seconds",
    MetricKind.HISTOGRAM,
    "Time the forward pass was held up by a rebalance on a rank.",
    buckets=_DURATION,
    scale=NANOS,
)
EPLB_BALANCEDNESS: Final = Metric(
    "penstock_eplb_balancedness_ratio",
    MetricKind.HISTOGRAM,
    "Mean load of the ranks divided by the highest, before and after a rebalance; 1 is perfect.",
    ("when",),
    buckets=_RATIO,
    scale=NANOS,
)
EPLB_EXPERTS: Final = Metric(
    "penstock_eplb_experts_total",
    MetricKind.COUNTER,
    "Experts that a rebalance left unchanged or received, by where they came from (unchanged, local, remote).",
    ("source",),
)
POLICY_UPDATES: Final = Metric(
    "penstock_policy_updates_total",
    MetricKind.COUNTER,
    "Policies that took effect or were refused (accepted, rejected), by what changed them; order: a drill or quarantine order refused.",
    ("result", "source"),
    free=frozenset({"source"}),
)
QUARANTINES: Final = Metric(
    "penstock_quarantines_total",
    MetricKind.COUNTER,
    "Times a peer was put into quarantine; rehearsal is true if a drill brought it there.",
    ("peer", "reason", "rehearsal"),
    free=frozenset({"peer", "reason"}),
)

# --- the telemetry itself ---------------------------------------------------------------------------

EVENTS: Final = Metric(
    "penstock_events_total",
    MetricKind.COUNTER,
    "Entries committed to the log: events by kind, transfer_sample and probe_sample.",
    ("kind",),
)
EVENTS_DROPPED: Final = Metric(
    "penstock_events_dropped_total",
    MetricKind.COUNTER,
    "Entries that the engine lost before the agent had them; agent_state_lost: that the agent lost after it had them.",
    ("reason",),
    free=frozenset({"reason"}),
)
GUARD_ERRORS: Final = Metric(
    "penstock_guard_errors_total",
    MetricKind.COUNTER,
    "Errors of Penstock's own code inside the engine, contained there.",
    ("hook", "error_class"),
    free=frozenset({"hook", "error_class"}),
)

# --- the aggregator about itself --------------------------------------------------------------------

LABEL_SETS_FOLDED: Final = Metric(
    "penstock_label_sets_folded_total",
    MetricKind.COUNTER,
    "Updates that went to __other__ because the metric had reached its cap of label sets.",
    ("metric",),
)
LABEL_SETS_EVICTED: Final = Metric(
    "penstock_label_sets_evicted_total",
    MetricKind.COUNTER,
    "Label sets that gave way to new ones after 15 idle minutes; one that returns resumes.",
    ("metric",),
)
LABEL_SETS_RESUMED: Final = Metric(
    "penstock_label_sets_resumed_total",
    MetricKind.COUNTER,
    "Label sets that had given way and have returned: their series go on from where they were.",
    ("metric",),
)
