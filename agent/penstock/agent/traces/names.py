"""Names of spans and of their attributes: the one place where they are written down."""

from __future__ import annotations

from penstock.proto.v1 import common_pb2

# Names of spans; those of the request and the handshake are part of their ids.
REQUEST = "penstock.request"
HANDSHAKE = "kv.handshake"
KV_LOAD = "kv.load"
EC_LOAD = "ec.load"
EC_PROBE = "ec.probe"
KV_LEASE = "kv.lease"
DEFERRAL = "penstock.deferral"
RECOMPUTE = "penstock.recompute"
EPLB_REBALANCE = "eplb.rebalance"
EPLB_LAYER = "eplb.layer"
POLICY_APPLY = "penstock.policy.apply"

# Attributes of OpenTelemetry's and vLLM's own vocabulary.
GEN_AI_REQUEST_ID = "gen_ai.request.id"
PROMPT_TOKENS = "gen_ai.usage.prompt_tokens"
COMPLETION_TOKENS = "gen_ai.usage.completion_tokens"
TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"  # noqa: S105  (a name)
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

# Copied onto the request: Jaeger matches all tags of a search on one span.
OUTCOME = "penstock.outcome"
MODE = "penstock.mode"
PEER = "penstock.peer"
PEER_ENGINE_ID = "penstock.peer_engine_id"
DECIDED_BY = "penstock.decided_by"
POLICY_HASH = "penstock.policy_hash"
TOKENS_KEPT = "penstock.tokens_kept"
TOKENS_RECOMPUTED = "penstock.tokens_recomputed"
ITEMS_RECOMPUTED = "penstock.items_recomputed"
REASON = "penstock.reason"
OBSERVED_OUTCOME = "penstock.observed_outcome"
OBSERVED_REASON = "penstock.observed_reason"
REHEARSAL = "penstock.rehearsal"

REQUEST_ID = "penstock.request_id"
REMOTE_REQUEST_ID = "penstock.remote_request_id"
CLIENT_REQUEST_ID = "penstock.client_request_id"
KV_ROLE = "penstock.kv_role"
FINISH_REASON = "penstock.finish_reason"
LOCAL_CACHED_TOKENS = "penstock.local_cached_tokens"
EXTERNAL_CACHED_TOKENS = "penstock.external_cached_tokens"
PREEMPTIONS = "penstock.preemptions"
LEASED_BLOCKS = "penstock.leased_blocks"
PINNED_BLOCKS = "penstock.pinned_blocks"
DEFERRED_SECONDS = "penstock.deferred_seconds"
ENTRIES_DROPPED = "penstock.entries_dropped"
ENGINE_LOST = "penstock.engine_lost"
UNFINISHED = "penstock.unfinished"
SAMPLING = "penstock.sampling"
REPLAYED = "penstock.replayed"

CHANNEL = "penstock.channel"
DIRECTION = "penstock.direction"
CONNECTOR = "penstock.connector"
BYTES = "penstock.bytes"
TRANSFERS = "penstock.transfers"
DESCRIPTORS = "penstock.descriptors"
RANKS = "penstock.ranks"
ATTEMPT = "penstock.attempt"
BLOCKS = "penstock.blocks"
ITEMS = "penstock.items"
PROBE_RESULT = "penstock.probe_result"
ERROR_CLASS = "penstock.error_class"
UPSTREAM_TYPE = "penstock.upstream_type"
CAUSED_BY_REQUEST_ID = "penstock.caused_by_request_id"
INCOMPATIBLE_FACTORS = "penstock.incompatible_factors"
DELAY_SECONDS = "penstock.delay_seconds"
DELAYED_BY_PEER = "penstock.delayed_by_peer"
DEFERRAL_REASON = "penstock.deferral.reason"
ENDING = "penstock.ending"
START_WAIT_SECONDS = "penstock.start_wait_seconds"
READERS = "penstock.readers"
HANDSHAKE_ID = "penstock.handshake_id"
QUEUE_SECONDS = "penstock.queue_seconds"
WAITERS = "penstock.waiters"
WAITING_REQUEST_IDS = "penstock.waiting_request_ids"
CLOCK_OFFSET_SECONDS = "penstock.clock_offset_seconds"
PREVIOUS_POLICY_HASH = "penstock.previous_policy_hash"
ACCEPTED = "penstock.accepted"
CAUSE = "penstock.cause"
MODEL = "penstock.model"
TRIGGER = "penstock.trigger"
ASYNCHRONOUS = "penstock.asynchronous"
COMMUNICATOR = "penstock.communicator"
PAUSE_SECONDS = "penstock.pause_seconds"
STEP = "penstock.step"
LAYERS = "penstock.layers"
LAYER = "penstock.layer"
EXPERTS = "penstock.experts"
FROM_RANKS = "penstock.from_ranks"
EXPERTS_UNCHANGED = "penstock.experts_unchanged"
EXPERTS_RECEIVED_LOCALLY = "penstock.experts_received_locally"
EXPERTS_RECEIVED_REMOTELY = "penstock.experts_received_remotely"
BALANCEDNESS_BEFORE = "penstock.balancedness_before"
BALANCEDNESS_AFTER = "penstock.balancedness_after"
# What a link leads to: a span's name.
LINK_TO = "penstock.link"

# The span of a load, by its channel.
LOADS: dict[int, str] = {
    common_pb2.CHANNEL_KV: KV_LOAD,
    common_pb2.CHANNEL_EC: EC_LOAD,
    common_pb2.CHANNEL_EPLB: EPLB_REBALANCE,
}


def of_failure(channel: int, mode: int) -> str:
    """Return the name of the span of a failure that is not part of a load."""
    if channel == common_pb2.CHANNEL_EC and mode == common_pb2.FAILURE_MODE_PROBE:
        return EC_PROBE
    return LOADS.get(channel, KV_LOAD)
