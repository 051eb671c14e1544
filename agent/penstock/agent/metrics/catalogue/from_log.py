"""Every metric that Penstock exposes, in the order of the exposition; the only place where a name is written.

Series come from four places:

- *log*: aggregated from the journal (`mapping`, `columns`), exact across restarts;
- *aggregator*: its counts about itself;
- *snapshots*: gauges of connected sources as they are now (`gauges`), never restored;
- *agent*: the daemon's own work since it started (`own`).

No label holds a rank, a request or a UUID; only the ``_info`` metrics name an engine's UUID.
"""

from __future__ import annotations

from typing import Final

from penstock.agent.metrics.model import Metric, MetricKind
from penstock.proto.names import NANOS

_MICRO = NANOS // 10**6


def _seconds(*bounds: float) -> tuple[int, ...]:
    return tuple(round(bound * 10**6) * _MICRO for bound in bounds)


_DURATION = _seconds(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DEFERRED = _seconds(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_AGENT = _seconds(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZE = tuple(1 << exponent for exponent in range(14, 35, 2))
_RATIO = tuple(tenth * NANOS // 10 for tenth in range(1, 11))

_PEER = frozenset({"peer"})
_CONNECTOR_PEER = frozenset({"connector", "peer"})

# --- from the log: transfers -----------------------------------------------------------------------

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
    "Time from posting a transfer to its completion; transfers with result ok only.",
    ("channel", "peer"),
    free=_PEER,
    buckets=_DURATION,
    scale=NANOS,
    exemplars=True,
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
    free=_PEER,
    buckets=_DURATION,
    scale=NANOS,
    exemplars=True,
)
HANDSHAKE_QUEUE: Final = Metric(
    "penstock_handshake_queue_seconds",
    MetricKind.HISTOGRAM,
    "Time a handshake waited for the handshake thread before it began.",
    ("peer",),
    free=_PEER,
    buckets=_DURATION,
    scale=NANOS,
    exemplars=True,
)

COLLATERAL_DELAY: Final = Metric(
    "penstock_collateral_delay_seconds",
    MetricKind.HISTOGRAM,
    "Time transfers were held up by the trouble of another peer, such as its slow handshakes; one that was given up meanwhile counts, too.",
    ("channel", "caused_by_peer"),
    free=frozenset({"caused_by_peer"}),
    buckets=_DURATION,
    scale=NANOS,
)

# --- from the log: failures and what was done about them -------------------------------------------

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
    free=_PEER,
    exemplars=True,
)
LOAD_OUTCOMES: Final = Metric(
    "penstock_load_outcomes_total",
    MetricKind.COUNTER,
    "What was finally done about a failed load, one per request and cause; rehearsal is true if a drill caused it.",
    ("channel", "outcome", "decided_by", "mode", "peer", "rehearsal"),
    free=_PEER,
    exemplars=True,
)
RECOMPUTED_TOKENS: Final = Metric(
    "penstock_recomputed_tokens_total",
    MetricKind.COUNTER,
    "Prompt tokens computed again because their load failed (outcome recomputed); rehearsal is true if a drill caused it.",
    ("channel", "mode", "peer", "rehearsal"),
    free=_PEER,
    exemplars=True,
)

# --- from the log: deferrals -----------------------------------------------------------------------

DEFERRALS: Final = Metric(
    "penstock_deferrals_total",
    MetricKind.COUNTER,
    "Deferrals that ended; engine_lost if their source ended first.",
    ("reason", "ending", "peer"),
    free=_PEER,
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

# --- from the log: probes, EPLB, policy, quarantine ------------------------------------------------

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
    buckets=(*_DURATION, *_seconds(60, 120)),
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

# --- from the log: the telemetry itself ------------------------------------------------------------

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

# --- the aggregator about itself -------------------------------------------------------------------

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

# --- from snapshots --------------------------------------------------------------------------------

TRANSFERS_IN_FLIGHT: Final = Metric(
    "penstock_transfers_in_flight",
    MetricKind.GAUGE,
    "Transfers that have begun and not ended, over all ranks.",
    ("channel", "peer"),
    free=_PEER,
)
OLDEST_TRANSFER: Final = Metric(
    "penstock_oldest_transfer_start_timestamp_seconds",
    MetricKind.GAUGE,
    "Start of the oldest transfer in flight.",
    ("channel", "peer"),
    free=_PEER,
)
DEFERRED_REQUESTS: Final = Metric(
    "penstock_deferred_requests",
    MetricKind.GAUGE,
    "Requests that the scheduler passes over now.",
    ("reason", "peer"),
    free=_PEER,
)
OLDEST_DEFERRAL: Final = Metric(
    "penstock_oldest_deferral_start_timestamp_seconds",
    MetricKind.GAUGE,
    "Start of the oldest deferral that has not ended.",
    ("reason", "peer"),
    free=_PEER,
)
SEND_LEASES: Final = Metric(
    "penstock_send_leases",
    MetricKind.GAUGE,
    "Finished requests whose blocks wait for their reader; the highest of the ranks.",
)
SEND_LEASE_BLOCKS: Final = Metric(
    "penstock_send_lease_blocks",
    MetricKind.GAUGE,
    "Blocks that wait for their reader; the highest of the ranks.",
)
HELD_BLOCKS: Final = Metric(
    "penstock_held_blocks",
    MetricKind.GAUGE,
    "KV blocks of requests that do not run: of a load under way (load), of a load that was given up and to whose blocks the "
    "peer may still write (pinned), or leased to a reader (lease, peer unknown); the highest of the ranks.",
    ("holder", "peer"),
    free=_PEER,
)
OLDEST_HELD: Final = Metric(
    "penstock_oldest_held_blocks_start_timestamp_seconds",
    MetricKind.GAUGE,
    "Since when the oldest of these blocks are held; absent where that is not known.",
    ("holder", "peer"),
    free=_PEER,
)
KV_BLOCKS: Final = Metric(
    "penstock_kv_cache_blocks",
    MetricKind.GAUGE,
    "KV blocks that the engine has in all.",
)
POLICY_INFO: Final = Metric(
    "penstock_policy_info",
    MetricKind.INFO,
    "Hash of the policy in force; none where vLLM's own configuration holds.",
    ("hash",),
)
POLICY_ACTION: Final = Metric(
    "penstock_policy_action",
    MetricKind.GAUGE,
    "1 for what is done now about a failed load of the channel, 0 for the alternatives.",
    ("channel", "action"),
)
POLICY_IN_SYNC: Final = Metric(
    "penstock_policy_in_sync",
    MetricKind.GAUGE,
    "1 if the policy in force is the one that the agent wants; 0 also while a pause holds it back.",
)
POLICY_LAST_CHANGE: Final = Metric(
    "penstock_policy_last_change_timestamp_seconds",
    MetricKind.GAUGE,
    "When the policy in force last changed.",
)
POLICY_EXPIRY: Final = Metric(
    "penstock_policy_expiry_timestamp_seconds",
    MetricKind.GAUGE,
    "When the policy in force moves on by itself; absent if it does not.",
)
PEER_QUARANTINE: Final = Metric(
    "penstock_peer_quarantine_state",
    MetricKind.GAUGE,
    "1 for the quarantine state of the peer (closed, open, half_open), 0 for the others.",
    ("peer", "state"),
    free=_PEER,
)
UPSTREAM_INVALID_PEERS: Final = Metric(
    "penstock_upstream_invalid_peers",
    MetricKind.GAUGE,
    "Peers in vLLM's own list of invalid remote engines.",
)
PEER_INFO: Final = Metric(
    "penstock_peer_info",
    MetricKind.INFO,
    "The connector's own id of the engine behind a peer.",
    ("peer", "peer_engine_id"),
    free=_PEER,
)
PEER_CLOCK_OFFSET: Final = Metric(
    "penstock_peer_clock_offset_seconds",
    MetricKind.GAUGE,
    "The peer's monotonic clock minus the engine's, by which vLLM ends leases: between machines, the difference of their "
    "boot times; 0 where the handshake was too slow to tell.",
    ("peer",),
    free=_PEER,
)
ENGINE_INFO: Final = Metric(
    "penstock_engine_info",
    MetricKind.INFO,
    "What the engine is. role: what the server is for (prefill, decode, encoder, both), guessed if PENSTOCK_LABELS does not "
    "give it. kv_role and ec_role: vLLM's settings.",
    (
        "model",
        "role",
        "role_guessed",
        "vllm_version",
        "kv_connector",
        "kv_role",
        "kv_engine_id",
        "kv_load_failure_policy",
        "ec_connector",
        "ec_role",
        "scheduler_class",
        "side_channel",
        "tensor_parallel_size",
        "data_parallel_size",
    ),
)
ENGINE_COMPATIBILITY: Final = Metric(
    "penstock_engine_compatibility_info",
    MetricKind.INFO,
    "The connector's compatibility hash: one row without a factor, and one for each factor that goes into it.",
    ("hash", "factor", "value"),
    free=frozenset({"factor", "value"}),
)
ENGINE_START: Final = Metric(
    "penstock_engine_start_timestamp_seconds",
    MetricKind.GAUGE,
    "When the engine process started.",
)
ENGINE_PAUSED: Final = Metric(
    "penstock_engine_paused",
    MetricKind.GAUGE,
    "1 while every connected process of the engine reports that agentctl pause holds: its hooks are passive.",
)
PAUSE_EXPIRY: Final = Metric(
    "penstock_engine_pause_expiry_timestamp_seconds",
    MetricKind.GAUGE,
    "When the pause that is ordered for the engine ends by itself; absent without a pause, or without an end.",
)
HOOK_INSTALLED: Final = Metric(
    "penstock_hook_installed",
    MetricKind.GAUGE,
    "1 if the hook is in place on every rank, 0 with the reason if it is not.",
    ("component", "hook", "reason"),
    free=frozenset({"hook", "reason"}),
)
ENGINE_CONNECTED: Final = Metric(
    "penstock_engine_connected",
    MetricKind.GAUGE,
    "1 if the engine is connected to the agent, 0 while it is away; it goes after --retire-after.",
)
ENGINE_STOPPED: Final = Metric(
    "penstock_engine_stopped",
    MetricKind.GAUGE,
    "1 if the engine is away and said goodbye: it was stopped on purpose; 0 while it is connected or if it vanished.",
)

PENDING_ENTRIES: Final = Metric(
    "penstock_pending_entries",
    MetricKind.GAUGE,
    "Entries that wait in the engine for the agent, those included that were given up and are not told yet.",
)
UNACKNOWLEDGED_BYTES: Final = Metric(
    "penstock_unacknowledged_bytes",
    MetricKind.GAUGE,
    "Batches that wait in the engine for their acknowledgement; each process keeps at most 32 MiB.",
)
UNACCOUNTED_ENTRIES: Final = Metric(
    "penstock_unaccounted_entries",
    MetricKind.GAUGE,
    "Entries that the engine's processes emitted and that are neither stored, nor counted as dropped, nor pending; "
    "entries stored more often than emitted count too. 0 unless something is broken.",
)

# --- the agent -------------------------------------------------------------------------------------

ENGINES_EXPECTED: Final = Metric(
    "penstock_engines_expected",
    MetricKind.GAUGE,
    "Engines that should be connected: as configured, else all that have been seen; less those that were stopped.",
    per_engine=False,
)
ENGINES_CONNECTED: Final = Metric(
    "penstock_engines_connected",
    MetricKind.GAUGE,
    "Engines that are connected.",
    per_engine=False,
)
STATE_CREATED: Final = Metric(
    "penstock_state_created_timestamp_seconds",
    MetricKind.GAUGE,
    "When counting began; a new value is a genuine reset of all counters.",
    per_engine=False,
)
COMMIT_DURATION: Final = Metric(
    "penstock_agent_commit_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time a commit to the journal took.",
    per_engine=False,
    buckets=_AGENT,
    scale=NANOS,
)
ACK_DURATION: Final = Metric(
    "penstock_agent_ack_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time from the arrival of a batch to its acknowledgement.",
    per_engine=False,
    buckets=_AGENT,
    scale=NANOS,
)
EXPORT_DURATION: Final = Metric(
    "penstock_agent_export_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time an export of spans took, failed ones included.",
    per_engine=False,
    buckets=_AGENT,
    scale=NANOS,
)
COMMIT_QUEUE: Final = Metric(
    "penstock_agent_commit_queue_batches",
    MetricKind.GAUGE,
    "Batches that wait for their commit.",
    per_engine=False,
)
EXPORT_BACKLOG: Final = Metric(
    "penstock_agent_export_backlog_batches",
    MetricKind.GAUGE,
    "Batches of the log that the trace export has not passed yet.",
    per_engine=False,
)
POLICY_FILES_VALID: Final = Metric(
    "penstock_agent_policy_files_valid",
    MetricKind.GAUGE,
    "1 if the present content of the policy files is in force, 0 if it is refused and the last good one stays.",
    per_engine=False,
)
POLICY_FILES_LOADS: Final = Metric(
    "penstock_agent_policy_files_loads_total",
    MetricKind.COUNTER,
    "Contents of the policy files that were applied or refused.",
    ("result",),
    per_engine=False,
)
POLICY_FILES_SUCCESS: Final = Metric(
    "penstock_agent_policy_files_last_success_timestamp_seconds",
    MetricKind.GAUGE,
    "When a content of the policy files was last applied.",
    per_engine=False,
)
REFUSED_MESSAGES: Final = Metric(
    "penstock_agent_refused_messages_total",
    MetricKind.COUNTER,
    "Messages and streams of engines that were not taken: invalid, out_of_order, journal (full), memory, streams, "
    "engines, sources (too many new ones), silent, held (another process speaks for that engine).",
    ("reason",),
    per_engine=False,
)
BROKEN_STREAMS: Final = Metric(
    "penstock_agent_broken_streams_total",
    MetricKind.COUNTER,
    "Engines' streams that broke off: their process or connection ended, or gRPC itself refused a message (above 2 MiB), "
    "which it does not tell the agent apart from that.",
    per_engine=False,
)
SPANS: Final = Metric(
    "penstock_agent_spans_total",
    MetricKind.COUNTER,
    "Spans that the backend took, those that it refused and that were given up, those left out by the sampling.",
    ("result",),
    per_engine=False,
)
GIVEN_UP: Final = Metric(
    "penstock_agent_unfinished_requests_total",
    MetricKind.COUNTER,
    "Requests whose spans were exported before their end, because they were too old, too many or too large together: "
    "age, count, memory.",
    ("reason",),
    per_engine=False,
)
POISONED: Final = Metric(
    "penstock_agent_poisoned_batches_total",
    MetricKind.COUNTER,
    "Committed batches of which something could not be taken up, by an error of the agent; they stay in the log. part is "
    "metrics or traces.",
    ("part",),
    per_engine=False,
)
OLDEST_UNEXPORTED: Final = Metric(
    "penstock_agent_oldest_unexported_timestamp_seconds",
    MetricKind.GAUGE,
    "When the oldest batch with spans that are not delivered was received; absent if there is none.",
    per_engine=False,
)
BUILD: Final = Metric(
    "penstock_agent_build_info",
    MetricKind.INFO,
    "What the agent is made of.",
    ("version", "python_version", "grpc_version", "sqlite_version"),
    per_engine=False,
)
DEGRADED: Final = Metric(
    "penstock_agent_degraded",
    MetricKind.GAUGE,
    "1 for each reason why the agent goes on without all that it promises; /readyz says it in sentences.",
    ("reason",),
    per_engine=False,
)
SET_ASIDE: Final = Metric(
    "penstock_agent_databases_set_aside",
    MetricKind.GAUGE,
    "Databases that the agent set aside, damaged or not its own; they stay in the state directory until you move them.",
    ("database",),
    per_engine=False,
)
RESTORED: Final = Metric(
    "penstock_agent_databases_restored_total",
    MetricKind.COUNTER,
    "Databases that were removed or replaced while the agent ran and that it restored.",
    ("database",),
    per_engine=False,
)
LOST_BATCHES: Final = Metric(
    "penstock_agent_lost_batches_total",
    MetricKind.COUNTER,
    "Acknowledged batches that went from the log with a damaged journal; the rest of it was kept.",
    per_engine=False,
)
STATE_BYTES: Final = Metric(
    "penstock_agent_state_bytes",
    MetricKind.GAUGE,
    "Bytes of all files of the state directory.",
    per_engine=False,
)
STATE_LIMIT: Final = Metric(
    "penstock_agent_state_limit_bytes",
    MetricKind.GAUGE,
    "Bytes that the state directory may have.",
    per_engine=False,
)
LOG_OLDEST: Final = Metric(
    "penstock_agent_log_oldest_timestamp_seconds",
    MetricKind.GAUGE,
    "When the oldest batch that is still in the log was received.",
    per_engine=False,
)
PRUNED: Final = Metric(
    "penstock_agent_pruned_batches_total",
    MetricKind.COUNTER,
    "Batches that were deleted to stay within the limit; those with exported=false had traces to deliver. "
    "All are in the counters.",
    ("exported",),
    per_engine=False,
)
AUDIT_TRIMMED: Final = Metric(
    "penstock_agent_audit_trimmed_entries_total",
    MetricKind.COUNTER,
    "Oldest entries of the policies' audit log that were deleted to stay within its limit; the log says so, too.",
    per_engine=False,
)
COLLECTOR_SUCCESS: Final = Metric(
    "penstock_agent_collector_success",
    MetricKind.GAUGE,
    "1 if this part of the exposition worked, 0 if it failed and its metrics are missing.",
    ("collector",),
    per_engine=False,
)
LABEL_SETS_HIDDEN: Final = Metric(
    "penstock_agent_label_sets_hidden",
    MetricKind.GAUGE,
    "Label sets of gauges beyond the cap, folded into __other__ or left out of this scrape.",
    ("metric",),
    per_engine=False,
)

METRICS: Final[tuple[Metric, ...]] = tuple(value for value in globals().values() if isinstance(value, Metric))
"""All of the above, in their order."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
