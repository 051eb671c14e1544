"""Metrics of the agent's own work since it started."""

from __future__ import annotations

from typing import Final

from penstock.agent.metrics.catalogue.metric import Metric, MetricKind, seconds
from penstock.proto.names import NANOS

_AGENT = seconds(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

ENGINES_EXPECTED: Final = Metric(
    "penstock_engines_expected",
    MetricKind.GAUGE,
    "Engines that should be connected: the number configured, else all engines not retired; minus those that were stopped.",
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
POLICY_SOURCE_UP: Final = Metric(
    "penstock_policy_source_up",
    MetricKind.GAUGE,
    "1 while the policy source is connected, 0 while it is away and its last policies stay in force.",
    ("source",),
    per_engine=False,
)
POLICY_SOURCE_OBJECTS: Final = Metric(
    "penstock_policy_source_objects",
    MetricKind.GAUGE,
    "Policies of the source: accepted, or refused (the last good policy of that name stays in force).",
    ("source", "state"),
    per_engine=False,
)
POLICY_SOURCE_CHANGES: Final = Metric(
    "penstock_policy_source_changes_total",
    MetricKind.COUNTER,
    "Sets of policies of the source that changed what is in force.",
    ("source",),
    per_engine=False,
)
ROLLOUT_PERCENT: Final = Metric(
    "penstock_policy_rollout_percent",
    MetricKind.GAUGE,
    "Percent of the engines that have the policy, for each policy that agentctl rollout rolls out: 0 after an abort.",
    ("policy",),
    per_engine=False,
)
ROLLOUT_STATE: Final = Metric(
    "penstock_policy_rollout_state",
    MetricKind.GAUGE,
    "1 for the state of the policy's roll-out: progressing, undecided, paused, promoted, aborted; 0 for the others.",
    ("policy", "state"),
    per_engine=False,
)
ROLLOUT_ABORTS: Final = Metric(
    "penstock_policy_rollout_aborts_total",
    MetricKind.COUNTER,
    "Roll-outs that the agent aborted by itself, because the engines with the policy were worse.",
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
    "which the agent cannot tell apart.",
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
    "Committed batches that could not be processed completely, by an error of the agent; they stay in the log. part is "
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
    "Versions of the agent and of what it runs on.",
    ("version", "python_version", "grpc_version", "sqlite_version"),
    per_engine=False,
)
DEGRADED: Final = Metric(
    "penstock_agent_degraded",
    MetricKind.GAUGE,
    "1 for each reason why the agent runs with reduced guarantees; /readyz says it in sentences.",
    ("reason",),
    per_engine=False,
)
CONDITION: Final = Metric(
    "penstock_condition",
    MetricKind.GAUGE,
    "1 for each engine of each cause that lasts, as agentctl diagnose names it; judged every 15 s, or as rarely as a fiftieth "
    "of a core allows.",
    ("kind", "server", "engine", "peer", "confidence"),
    free=frozenset({"server", "engine", "peer"}),
    per_engine=False,
)
HARMLESS_LATE_READS: Final = Metric(
    "penstock_late_reads_harmless",
    MetricKind.GAUGE,
    "1 for each engine whose blocks were read too late in the last ten minutes where the log shows of each of these reads that "
    "no answer is wrong; no series for any other.",
    ("server", "engine"),
    free=frozenset({"server", "engine"}),
    per_engine=False,
)
JUDGED: Final = Metric(
    "penstock_condition_judged_timestamp_seconds",
    MetricKind.GAUGE,
    "When the conditions were judged; no series before the first time, and where the log cannot be read.",
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
    "Acknowledged batches that were lost with a damaged journal; the rest of the log was kept.",
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
