"""Gauges of connected sources as they are now; never restored."""

from __future__ import annotations

from typing import Final

from penstock.agent.metrics.catalogue.metric import PEER, Metric, MetricKind

TRANSFERS_IN_FLIGHT: Final = Metric(
    "penstock_transfers_in_flight",
    MetricKind.GAUGE,
    "Transfers that have begun and not ended, over all ranks.",
    ("channel", "peer"),
    free=PEER,
)
OLDEST_TRANSFER: Final = Metric(
    "penstock_oldest_transfer_start_timestamp_seconds",
    MetricKind.GAUGE,
    "Start of the oldest transfer in flight.",
    ("channel", "peer"),
    free=PEER,
)
THROUGHPUT: Final = Metric(
    "penstock_transfer_throughput_bytes_per_second",
    MetricKind.GAUGE,
    "Median of the bytes/s of single transfers in the last minute (with fewer than 5 there, in the last 15), of the slowest rank; "
    "of the largest size class (below 1 MiB, 1 to 16 MiB, more) that can be compared. Absent after 15 minutes without transfers.",
    ("channel", "peer"),
    free=PEER,
)
THROUGHPUT_USUAL_RATIO: Final = Metric(
    "penstock_transfer_throughput_usual_ratio",
    MetricKind.GAUGE,
    "The same over the median of the 24 hours before, of the rank where it is lowest; absent with fewer than 20 transfers before.",
    ("channel", "peer"),
    free=PEER,
)
THROUGHPUT_PEERS_RATIO: Final = Metric(
    "penstock_transfer_throughput_peers_ratio",
    MetricKind.GAUGE,
    "The same over the median of the engine's other peers now, transfers of the same size class; absent with fewer than two.",
    ("channel", "peer"),
    free=PEER,
)
DEFERRED_REQUESTS: Final = Metric(
    "penstock_deferred_requests",
    MetricKind.GAUGE,
    "Requests that the scheduler passes over now.",
    ("reason", "peer"),
    free=PEER,
)
OLDEST_DEFERRAL: Final = Metric(
    "penstock_oldest_deferral_start_timestamp_seconds",
    MetricKind.GAUGE,
    "Start of the oldest deferral that has not ended.",
    ("reason", "peer"),
    free=PEER,
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
    "KV blocks that no request computes with: of a load under way (load), of a load that was given up and to whose blocks the "
    "peer may still write (pinned), of a load whose request has ended before it (aborted), leased to a reader (lease, peer "
    "unknown), or of a save behind a request that has ended (save, peer unknown); the highest of the ranks.",
    ("holder", "peer"),
    free=PEER,
)
OLDEST_HELD: Final = Metric(
    "penstock_oldest_held_blocks_start_timestamp_seconds",
    MetricKind.GAUGE,
    "Since when the oldest of these blocks are held; absent where that is not known.",
    ("holder", "peer"),
    free=PEER,
)
KV_BLOCKS: Final = Metric(
    "penstock_kv_cache_blocks",
    MetricKind.GAUGE,
    "KV blocks that the engine has in all.",
)
FREE_BLOCKS: Final = Metric(
    "penstock_kv_cache_free_blocks",
    MetricKind.GAUGE,
    "KV blocks that a request can have now; cached ones that no request uses are free.",
)
RUNNING_REQUESTS: Final = Metric(
    "penstock_running_requests",
    MetricKind.GAUGE,
    "Requests that the engine's scheduler runs; absent where it is not known, also from an older engine.",
)
WAITING_REQUESTS: Final = Metric(
    "penstock_waiting_requests",
    MetricKind.GAUGE,
    "Requests that wait in the engine's scheduler, those that are deferred among them. reason: next_step, capacity (KV blocks), "
    "running_limit, paused, lora_slots, remote_kv, kv_lookup, encoder_cache, grammar, streaming_input, other.",
    ("reason",),
)
OLDEST_WAITING: Final = Metric(
    "penstock_oldest_waiting_request_start_timestamp_seconds",
    MetricKind.GAUGE,
    "When the one that has waited longest arrived, or was preempted.",
    ("reason",),
)
LAST_STEP: Final = Metric(
    "penstock_last_step_timestamp_seconds",
    MetricKind.GAUGE,
    "When the engine last scheduled a token; absent before the first.",
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
    "When the policy in force next changes by itself; absent if it does not.",
)
PEER_QUARANTINE: Final = Metric(
    "penstock_peer_quarantine_state",
    MetricKind.GAUGE,
    "1 for the quarantine state of the peer (closed, open, half_open), 0 for the others.",
    ("peer", "state"),
    free=PEER,
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
    free=PEER,
)
PEER_CLOCK_OFFSET: Final = Metric(
    "penstock_peer_clock_offset_seconds",
    MetricKind.GAUGE,
    "The peer's monotonic clock minus the engine's, by which vLLM ends leases: between machines, the difference of their "
    "boot times; 0 where the handshake was too slow to tell.",
    ("peer",),
    free=PEER,
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
ENGINE_WEIGHTS: Final = Metric(
    "penstock_engine_weights_info",
    MetricKind.INFO,
    "Which weights the engine has loaded: digest of the names, sizes and samples of their files, commit of their repository, and the "
    "label weights of PENSTOCK_LABELS, which counts instead of the digest; its pool, and the roll-out of its pod. Absent while nothing "
    "is known.",
    ("model", "role", "pool", "weights", "digest", "weights_revision", "revision"),
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
OUT_OF_ROTATION: Final = Metric(
    "penstock_server_out_of_rotation",
    MetricKind.GAUGE,
    "1 while every connected front end of the server reports that its readiness answers 503 by order (agentctl eject).",
)
PAUSE_EXPIRY: Final = Metric(
    "penstock_engine_pause_expiry_timestamp_seconds",
    MetricKind.GAUGE,
    "When the pause that is ordered for the engine ends by itself; absent without a pause, or without an end.",
)
HOOK_INSTALLED: Final = Metric(
    "penstock_hook_installed",
    MetricKind.GAUGE,
    "1 if the hook is in place on every rank, 0 with the reason if it is not. A row with a part, always 0, is a detail that an "
    "installed hook does without because this vLLM lacks what it needs.",
    ("component", "hook", "part", "reason"),
    free=frozenset({"hook", "part", "reason"}),
)
ENGINE_CONNECTED: Final = Metric(
    "penstock_engine_connected",
    MetricKind.GAUGE,
    "1 if the engine is connected to the agent, 0 while it is away; absent after --retire-after.",
)
ENGINE_STOPPED: Final = Metric(
    "penstock_engine_stopped",
    MetricKind.GAUGE,
    "1 if the engine is away and was stopped on purpose: it said goodbye, or its server was stopped; 0 while it is connected "
    "or if it vanished.",
)
STALLS: Final = Metric(
    "penstock_stalls",
    MetricKind.GAUGE,
    "Number of requests, calls, threads or workers that have stopped making progress. Absent if nothing is stalled. kind: "
    "load_not_started, load_missing, no_transfer_params, rebalance_overdue, rebalance_unfinished, call_stuck, step_stuck, "
    "thread_dead, worker_silent, no_capacity, scheduler_paused, steps_without_tokens, no_steps. peer: of load_not_started only.",
    ("kind", "peer"),
    free=PEER,
)
STALL_START: Final = Metric(
    "penstock_stall_start_timestamp_seconds",
    MetricKind.GAUGE,
    "When the stall began.",
    ("kind", "peer"),
    free=PEER,
)

PENDING_ENTRIES: Final = Metric(
    "penstock_pending_entries",
    MetricKind.GAUGE,
    "Entries that wait in the engine for the agent, including dropped ones that are not reported yet.",
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
