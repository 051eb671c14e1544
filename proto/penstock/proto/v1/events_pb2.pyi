from penstock.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SuspectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUSPECT_REASON_UNSPECIFIED: _ClassVar[SuspectReason]
    SUSPECT_REASON_LATE_READ: _ClassVar[SuspectReason]
    SUSPECT_REASON_LATE_WRITE: _ClassVar[SuspectReason]
    SUSPECT_REASON_FAILED_READ: _ClassVar[SuspectReason]
    SUSPECT_REASON_MISMATCH: _ClassVar[SuspectReason]
    SUSPECT_REASON_NAN: _ClassVar[SuspectReason]
    SUSPECT_REASON_OTHER_WEIGHTS: _ClassVar[SuspectReason]
    SUSPECT_REASON_OTHER_ENGINE: _ClassVar[SuspectReason]

class LeaseEnding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_ENDING_UNSPECIFIED: _ClassVar[LeaseEnding]
    LEASE_ENDING_READ: _ClassVar[LeaseEnding]
    LEASE_ENDING_EXPIRED: _ClassVar[LeaseEnding]
    LEASE_ENDING_ABORTED: _ClassVar[LeaseEnding]

class QuarantineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUARANTINE_STATE_UNSPECIFIED: _ClassVar[QuarantineState]
    QUARANTINE_STATE_CLOSED: _ClassVar[QuarantineState]
    QUARANTINE_STATE_OPEN: _ClassVar[QuarantineState]
    QUARANTINE_STATE_HALF_OPEN: _ClassVar[QuarantineState]

class EplbTrigger(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EPLB_TRIGGER_UNSPECIFIED: _ClassVar[EplbTrigger]
    EPLB_TRIGGER_INTERVAL: _ClassVar[EplbTrigger]
    EPLB_TRIGGER_ELASTIC: _ClassVar[EplbTrigger]
    EPLB_TRIGGER_OTHER: _ClassVar[EplbTrigger]
SUSPECT_REASON_UNSPECIFIED: SuspectReason
SUSPECT_REASON_LATE_READ: SuspectReason
SUSPECT_REASON_LATE_WRITE: SuspectReason
SUSPECT_REASON_FAILED_READ: SuspectReason
SUSPECT_REASON_MISMATCH: SuspectReason
SUSPECT_REASON_NAN: SuspectReason
SUSPECT_REASON_OTHER_WEIGHTS: SuspectReason
SUSPECT_REASON_OTHER_ENGINE: SuspectReason
LEASE_ENDING_UNSPECIFIED: LeaseEnding
LEASE_ENDING_READ: LeaseEnding
LEASE_ENDING_EXPIRED: LeaseEnding
LEASE_ENDING_ABORTED: LeaseEnding
QUARANTINE_STATE_UNSPECIFIED: QuarantineState
QUARANTINE_STATE_CLOSED: QuarantineState
QUARANTINE_STATE_OPEN: QuarantineState
QUARANTINE_STATE_HALF_OPEN: QuarantineState
EPLB_TRIGGER_UNSPECIFIED: EplbTrigger
EPLB_TRIGGER_INTERVAL: EplbTrigger
EPLB_TRIGGER_ELASTIC: EplbTrigger
EPLB_TRIGGER_OTHER: EplbTrigger

class Event(_message.Message):
    __slots__ = ("time_unix_nano", "component", "rank", "request_id", "rehearsal", "transfer_failure", "load_outcome", "deferral_start", "deferral_end", "request_closed", "handshake", "lease_closed", "policy_applied", "quarantine_changed", "eplb_rebalance", "source_lost", "transfer_delayed", "blocks_pinned", "forgotten", "answer_suspected", "server_stopping", "source_stopped", "kv_caches_released", "rotation_changed")
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOAD_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DEFERRAL_START_FIELD_NUMBER: _ClassVar[int]
    DEFERRAL_END_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLOSED_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    LEASE_CLOSED_FIELD_NUMBER: _ClassVar[int]
    POLICY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    EPLB_REBALANCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LOST_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_DELAYED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PINNED_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_SUSPECTED_FIELD_NUMBER: _ClassVar[int]
    SERVER_STOPPING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_STOPPED_FIELD_NUMBER: _ClassVar[int]
    KV_CACHES_RELEASED_FIELD_NUMBER: _ClassVar[int]
    ROTATION_CHANGED_FIELD_NUMBER: _ClassVar[int]
    time_unix_nano: int
    component: _common_pb2.Component
    rank: int
    request_id: str
    rehearsal: bool
    transfer_failure: TransferFailure
    load_outcome: LoadOutcome
    deferral_start: DeferralStart
    deferral_end: DeferralEnd
    request_closed: RequestClosed
    handshake: Handshake
    lease_closed: LeaseClosed
    policy_applied: PolicyApplied
    quarantine_changed: QuarantineChanged
    eplb_rebalance: EplbRebalance
    source_lost: SourceLost
    transfer_delayed: TransferDelayed
    blocks_pinned: BlocksPinned
    forgotten: Forgotten
    answer_suspected: AnswerSuspected
    server_stopping: ServerStopping
    source_stopped: SourceStopped
    kv_caches_released: KvCachesReleased
    rotation_changed: RotationChanged
    def __init__(self, time_unix_nano: _Optional[int] = ..., component: _Optional[_Union[_common_pb2.Component, str]] = ..., rank: _Optional[int] = ..., request_id: _Optional[str] = ..., rehearsal: bool = ..., transfer_failure: _Optional[_Union[TransferFailure, _Mapping]] = ..., load_outcome: _Optional[_Union[LoadOutcome, _Mapping]] = ..., deferral_start: _Optional[_Union[DeferralStart, _Mapping]] = ..., deferral_end: _Optional[_Union[DeferralEnd, _Mapping]] = ..., request_closed: _Optional[_Union[RequestClosed, _Mapping]] = ..., handshake: _Optional[_Union[Handshake, _Mapping]] = ..., lease_closed: _Optional[_Union[LeaseClosed, _Mapping]] = ..., policy_applied: _Optional[_Union[PolicyApplied, _Mapping]] = ..., quarantine_changed: _Optional[_Union[QuarantineChanged, _Mapping]] = ..., eplb_rebalance: _Optional[_Union[EplbRebalance, _Mapping]] = ..., source_lost: _Optional[_Union[SourceLost, _Mapping]] = ..., transfer_delayed: _Optional[_Union[TransferDelayed, _Mapping]] = ..., blocks_pinned: _Optional[_Union[BlocksPinned, _Mapping]] = ..., forgotten: _Optional[_Union[Forgotten, _Mapping]] = ..., answer_suspected: _Optional[_Union[AnswerSuspected, _Mapping]] = ..., server_stopping: _Optional[_Union[ServerStopping, _Mapping]] = ..., source_stopped: _Optional[_Union[SourceStopped, _Mapping]] = ..., kv_caches_released: _Optional[_Union[KvCachesReleased, _Mapping]] = ..., rotation_changed: _Optional[_Union[RotationChanged, _Mapping]] = ...) -> None: ...

class TransferFailure(_message.Message):
    __slots__ = ("channel", "connector", "direction", "mode", "error_type", "peer", "error_class", "error_text", "blocks", "bytes", "start_time_unix_nano", "remote_request_id", "attempt", "handshake_id", "incompatibility", "caused_by_request_id", "item", "upstream_type", "caused_by_peer", "compared", "mismatched", "used")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    REMOTE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_ID_FIELD_NUMBER: _ClassVar[int]
    INCOMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    CAUSED_BY_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_TYPE_FIELD_NUMBER: _ClassVar[int]
    CAUSED_BY_PEER_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    MISMATCHED_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    connector: str
    direction: _common_pb2.Direction
    mode: _common_pb2.FailureMode
    error_type: _common_pb2.ErrorType
    peer: _common_pb2.Peer
    error_class: str
    error_text: str
    blocks: int
    bytes: int
    start_time_unix_nano: int
    remote_request_id: str
    attempt: int
    handshake_id: int
    incompatibility: Incompatibility
    caused_by_request_id: str
    item: str
    upstream_type: str
    caused_by_peer: _common_pb2.Peer
    compared: int
    mismatched: int
    used: bool
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., connector: _Optional[str] = ..., direction: _Optional[_Union[_common_pb2.Direction, str]] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., error_type: _Optional[_Union[_common_pb2.ErrorType, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., error_class: _Optional[str] = ..., error_text: _Optional[str] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., start_time_unix_nano: _Optional[int] = ..., remote_request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., handshake_id: _Optional[int] = ..., incompatibility: _Optional[_Union[Incompatibility, _Mapping]] = ..., caused_by_request_id: _Optional[str] = ..., item: _Optional[str] = ..., upstream_type: _Optional[str] = ..., caused_by_peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., compared: _Optional[int] = ..., mismatched: _Optional[int] = ..., used: bool = ...) -> None: ...

class Incompatibility(_message.Message):
    __slots__ = ("local_hash", "remote_hash", "factors")
    LOCAL_HASH_FIELD_NUMBER: _ClassVar[int]
    REMOTE_HASH_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    local_hash: str
    remote_hash: str
    factors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, local_hash: _Optional[str] = ..., remote_hash: _Optional[str] = ..., factors: _Optional[_Iterable[str]] = ...) -> None: ...

class LoadOutcome(_message.Message):
    __slots__ = ("channel", "outcome", "decided_by", "mode", "error_type", "peer", "attempt", "tokens_kept", "tokens_recomputed", "items_recomputed", "policy_hash", "reason", "observed_outcome", "observed_reason", "connector")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_KEPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    ITEMS_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    POLICY_HASH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_REASON_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    outcome: _common_pb2.Outcome
    decided_by: _common_pb2.DecidedBy
    mode: _common_pb2.FailureMode
    error_type: _common_pb2.ErrorType
    peer: _common_pb2.Peer
    attempt: int
    tokens_kept: int
    tokens_recomputed: int
    items_recomputed: int
    policy_hash: str
    reason: str
    observed_outcome: _common_pb2.Outcome
    observed_reason: str
    connector: str
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., decided_by: _Optional[_Union[_common_pb2.DecidedBy, str]] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., error_type: _Optional[_Union[_common_pb2.ErrorType, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., attempt: _Optional[int] = ..., tokens_kept: _Optional[int] = ..., tokens_recomputed: _Optional[int] = ..., items_recomputed: _Optional[int] = ..., policy_hash: _Optional[str] = ..., reason: _Optional[str] = ..., observed_outcome: _Optional[_Union[_common_pb2.Outcome, str]] = ..., observed_reason: _Optional[str] = ..., connector: _Optional[str] = ...) -> None: ...

class DeferralStart(_message.Message):
    __slots__ = ("reason", "channel", "peer", "remote_request_id")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REMOTE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.DeferralReason
    channel: _common_pb2.Channel
    peer: _common_pb2.Peer
    remote_request_id: str
    def __init__(self, reason: _Optional[_Union[_common_pb2.DeferralReason, str]] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., remote_request_id: _Optional[str] = ...) -> None: ...

class DeferralEnd(_message.Message):
    __slots__ = ("reason", "channel", "peer", "ending", "start_time_unix_nano", "transfer_start_time_unix_nano", "observed_reason", "duration_nano")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_REASON_FIELD_NUMBER: _ClassVar[int]
    DURATION_NANO_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.DeferralReason
    channel: _common_pb2.Channel
    peer: _common_pb2.Peer
    ending: _common_pb2.DeferralEnding
    start_time_unix_nano: int
    transfer_start_time_unix_nano: int
    observed_reason: str
    duration_nano: int
    def __init__(self, reason: _Optional[_Union[_common_pb2.DeferralReason, str]] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., ending: _Optional[_Union[_common_pb2.DeferralEnding, str]] = ..., start_time_unix_nano: _Optional[int] = ..., transfer_start_time_unix_nano: _Optional[int] = ..., observed_reason: _Optional[str] = ..., duration_nano: _Optional[int] = ...) -> None: ...

class RequestClosed(_message.Message):
    __slots__ = ("traceparent", "tracestate", "external_request_id", "kv_role", "remote_request_id", "peer", "arrival_time_unix_nano", "scheduled_time_unix_nano", "first_token_time_unix_nano", "prompt_tokens", "output_tokens", "local_cached_tokens", "external_cached_tokens", "preemptions", "finish_reason", "leased_blocks", "gates", "nans_in_logits", "verifications", "unloaded_tokens")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KV_ROLE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    NANS_IN_LOGITS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    external_request_id: str
    kv_role: _common_pb2.Role
    remote_request_id: str
    peer: _common_pb2.Peer
    arrival_time_unix_nano: int
    scheduled_time_unix_nano: int
    first_token_time_unix_nano: int
    prompt_tokens: int
    output_tokens: int
    local_cached_tokens: int
    external_cached_tokens: int
    preemptions: int
    finish_reason: str
    leased_blocks: int
    gates: Gates
    nans_in_logits: int
    verifications: _containers.RepeatedCompositeFieldContainer[Verification]
    unloaded_tokens: int
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., external_request_id: _Optional[str] = ..., kv_role: _Optional[_Union[_common_pb2.Role, str]] = ..., remote_request_id: _Optional[str] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., arrival_time_unix_nano: _Optional[int] = ..., scheduled_time_unix_nano: _Optional[int] = ..., first_token_time_unix_nano: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., local_cached_tokens: _Optional[int] = ..., external_cached_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., finish_reason: _Optional[str] = ..., leased_blocks: _Optional[int] = ..., gates: _Optional[_Union[Gates, _Mapping]] = ..., nans_in_logits: _Optional[int] = ..., verifications: _Optional[_Iterable[_Union[Verification, _Mapping]]] = ..., unloaded_tokens: _Optional[int] = ...) -> None: ...

class Gates(_message.Message):
    __slots__ = ("queue_nano", "handshake_queue_nano", "peer_nano", "transfer_nano", "recompute_nano", "own_prefill_nano", "encoder_nano")
    QUEUE_NANO_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_QUEUE_NANO_FIELD_NUMBER: _ClassVar[int]
    PEER_NANO_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_NANO_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_NANO_FIELD_NUMBER: _ClassVar[int]
    OWN_PREFILL_NANO_FIELD_NUMBER: _ClassVar[int]
    ENCODER_NANO_FIELD_NUMBER: _ClassVar[int]
    queue_nano: int
    handshake_queue_nano: int
    peer_nano: int
    transfer_nano: int
    recompute_nano: int
    own_prefill_nano: int
    encoder_nano: int
    def __init__(self, queue_nano: _Optional[int] = ..., handshake_queue_nano: _Optional[int] = ..., peer_nano: _Optional[int] = ..., transfer_nano: _Optional[int] = ..., recompute_nano: _Optional[int] = ..., own_prefill_nano: _Optional[int] = ..., encoder_nano: _Optional[int] = ...) -> None: ...

class AnswerSuspected(_message.Message):
    __slots__ = ("reason", "channel", "peer", "remote_request_id", "mode", "error_type", "nans_in_logits", "named", "named_owner")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REMOTE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    NANS_IN_LOGITS_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    NAMED_OWNER_FIELD_NUMBER: _ClassVar[int]
    reason: SuspectReason
    channel: _common_pb2.Channel
    peer: _common_pb2.Peer
    remote_request_id: str
    mode: _common_pb2.FailureMode
    error_type: _common_pb2.ErrorType
    nans_in_logits: int
    named: _common_pb2.Peer
    named_owner: _common_pb2.AddressOwner
    def __init__(self, reason: _Optional[_Union[SuspectReason, str]] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., remote_request_id: _Optional[str] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., error_type: _Optional[_Union[_common_pb2.ErrorType, str]] = ..., nans_in_logits: _Optional[int] = ..., named: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., named_owner: _Optional[_Union[_common_pb2.AddressOwner, str]] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("channel", "peer", "ok", "mismatch", "unverified", "compared", "transferred", "reason")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    peer: _common_pb2.Peer
    ok: int
    mismatch: int
    unverified: int
    compared: int
    transferred: int
    reason: str
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., ok: _Optional[int] = ..., mismatch: _Optional[int] = ..., unverified: _Optional[int] = ..., compared: _Optional[int] = ..., transferred: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("id", "connector", "peer", "result", "error_type", "queued_time_unix_nano", "start_time_unix_nano", "end_time_unix_nano", "clock_offset_nano", "waiting_request_ids", "waiters_total", "error_class", "error_text")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    END_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NANO_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    WAITERS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    id: int
    connector: str
    peer: _common_pb2.Peer
    result: _common_pb2.TransferResult
    error_type: _common_pb2.ErrorType
    queued_time_unix_nano: int
    start_time_unix_nano: int
    end_time_unix_nano: int
    clock_offset_nano: int
    waiting_request_ids: _containers.RepeatedScalarFieldContainer[str]
    waiters_total: int
    error_class: str
    error_text: str
    def __init__(self, id: _Optional[int] = ..., connector: _Optional[str] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., result: _Optional[_Union[_common_pb2.TransferResult, str]] = ..., error_type: _Optional[_Union[_common_pb2.ErrorType, str]] = ..., queued_time_unix_nano: _Optional[int] = ..., start_time_unix_nano: _Optional[int] = ..., end_time_unix_nano: _Optional[int] = ..., clock_offset_nano: _Optional[int] = ..., waiting_request_ids: _Optional[_Iterable[str]] = ..., waiters_total: _Optional[int] = ..., error_class: _Optional[str] = ..., error_text: _Optional[str] = ...) -> None: ...

class LeaseClosed(_message.Message):
    __slots__ = ("ending", "start_time_unix_nano", "blocks", "readers", "connector")
    ENDING_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    ending: LeaseEnding
    start_time_unix_nano: int
    blocks: int
    readers: int
    connector: str
    def __init__(self, ending: _Optional[_Union[LeaseEnding, str]] = ..., start_time_unix_nano: _Optional[int] = ..., blocks: _Optional[int] = ..., readers: _Optional[int] = ..., connector: _Optional[str] = ...) -> None: ...

class PolicyApplied(_message.Message):
    __slots__ = ("hash", "previous_hash", "accepted", "error", "cause", "received_time_unix_nano")
    HASH_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    hash: str
    previous_hash: str
    accepted: bool
    error: str
    cause: str
    received_time_unix_nano: int
    def __init__(self, hash: _Optional[str] = ..., previous_hash: _Optional[str] = ..., accepted: bool = ..., error: _Optional[str] = ..., cause: _Optional[str] = ..., received_time_unix_nano: _Optional[int] = ...) -> None: ...

class QuarantineChanged(_message.Message):
    __slots__ = ("peer", "state", "previous", "reason", "until_time_unix_nano")
    PEER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    peer: _common_pb2.Peer
    state: QuarantineState
    previous: QuarantineState
    reason: str
    until_time_unix_nano: int
    def __init__(self, peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., state: _Optional[_Union[QuarantineState, str]] = ..., previous: _Optional[_Union[QuarantineState, str]] = ..., reason: _Optional[str] = ..., until_time_unix_nano: _Optional[int] = ...) -> None: ...

class EplbLayer(_message.Message):
    __slots__ = ("layer", "experts_unchanged", "experts_received_locally", "experts_received_remotely", "recv_count", "recv_expert_ids", "recv_dst_rows", "bytes", "start_time_unix_nano", "duration_nano", "from_ranks")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_RECEIVED_LOCALLY_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_RECEIVED_REMOTELY_FIELD_NUMBER: _ClassVar[int]
    RECV_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECV_EXPERT_IDS_FIELD_NUMBER: _ClassVar[int]
    RECV_DST_ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    DURATION_NANO_FIELD_NUMBER: _ClassVar[int]
    FROM_RANKS_FIELD_NUMBER: _ClassVar[int]
    layer: int
    experts_unchanged: int
    experts_received_locally: int
    experts_received_remotely: int
    recv_count: int
    recv_expert_ids: _containers.RepeatedScalarFieldContainer[int]
    recv_dst_rows: _containers.RepeatedScalarFieldContainer[int]
    bytes: int
    start_time_unix_nano: int
    duration_nano: int
    from_ranks: _containers.RepeatedCompositeFieldContainer[RankBytes]
    def __init__(self, layer: _Optional[int] = ..., experts_unchanged: _Optional[int] = ..., experts_received_locally: _Optional[int] = ..., experts_received_remotely: _Optional[int] = ..., recv_count: _Optional[int] = ..., recv_expert_ids: _Optional[_Iterable[int]] = ..., recv_dst_rows: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ..., start_time_unix_nano: _Optional[int] = ..., duration_nano: _Optional[int] = ..., from_ranks: _Optional[_Iterable[_Union[RankBytes, _Mapping]]] = ...) -> None: ...

class RankBytes(_message.Message):
    __slots__ = ("rank", "bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    bytes: int
    def __init__(self, rank: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class EplbRebalance(_message.Message):
    __slots__ = ("trigger", "result", "asynchronous", "communicator", "model", "start_time_unix_nano", "duration_nano", "pause_nano", "layers", "balancedness_before", "balancedness_after", "step", "error_class", "error_text")
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ASYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    DURATION_NANO_FIELD_NUMBER: _ClassVar[int]
    PAUSE_NANO_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BALANCEDNESS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BALANCEDNESS_AFTER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    trigger: EplbTrigger
    result: _common_pb2.TransferResult
    asynchronous: bool
    communicator: str
    model: str
    start_time_unix_nano: int
    duration_nano: int
    pause_nano: int
    layers: _containers.RepeatedCompositeFieldContainer[EplbLayer]
    balancedness_before: float
    balancedness_after: float
    step: int
    error_class: str
    error_text: str
    def __init__(self, trigger: _Optional[_Union[EplbTrigger, str]] = ..., result: _Optional[_Union[_common_pb2.TransferResult, str]] = ..., asynchronous: bool = ..., communicator: _Optional[str] = ..., model: _Optional[str] = ..., start_time_unix_nano: _Optional[int] = ..., duration_nano: _Optional[int] = ..., pause_nano: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[EplbLayer, _Mapping]]] = ..., balancedness_before: _Optional[float] = ..., balancedness_after: _Optional[float] = ..., step: _Optional[int] = ..., error_class: _Optional[str] = ..., error_text: _Optional[str] = ...) -> None: ...

class SourceLost(_message.Message):
    __slots__ = ("epoch", "process", "last_seen_unix_nano", "open_deferrals")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    OPEN_DEFERRALS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    process: str
    last_seen_unix_nano: int
    open_deferrals: int
    def __init__(self, epoch: _Optional[int] = ..., process: _Optional[str] = ..., last_seen_unix_nano: _Optional[int] = ..., open_deferrals: _Optional[int] = ...) -> None: ...

class ServerStopping(_message.Message):
    __slots__ = ("timeout_nano",)
    TIMEOUT_NANO_FIELD_NUMBER: _ClassVar[int]
    timeout_nano: int
    def __init__(self, timeout_nano: _Optional[int] = ...) -> None: ...

class KvCachesReleased(_message.Message):
    __slots__ = ("connector", "restored", "since_time_unix_nano", "peers")
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    connector: str
    restored: bool
    since_time_unix_nano: int
    peers: int
    def __init__(self, connector: _Optional[str] = ..., restored: bool = ..., since_time_unix_nano: _Optional[int] = ..., peers: _Optional[int] = ...) -> None: ...

class RotationChanged(_message.Message):
    __slots__ = ("out", "since_time_unix_nano")
    OUT_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    out: bool
    since_time_unix_nano: int
    def __init__(self, out: bool = ..., since_time_unix_nano: _Optional[int] = ...) -> None: ...

class SourceStopped(_message.Message):
    __slots__ = ("epoch", "process", "last_seen_unix_nano")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    process: str
    last_seen_unix_nano: int
    def __init__(self, epoch: _Optional[int] = ..., process: _Optional[str] = ..., last_seen_unix_nano: _Optional[int] = ...) -> None: ...

class Forgotten(_message.Message):
    __slots__ = ("peer", "author")
    PEER_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    peer: _common_pb2.Peer
    author: str
    def __init__(self, peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., author: _Optional[str] = ...) -> None: ...

class TransferDelayed(_message.Message):
    __slots__ = ("channel", "peer", "delay_nano", "caused_by_peer", "handshake_id")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DELAY_NANO_FIELD_NUMBER: _ClassVar[int]
    CAUSED_BY_PEER_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_ID_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    peer: _common_pb2.Peer
    delay_nano: int
    caused_by_peer: _common_pb2.Peer
    handshake_id: int
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., delay_nano: _Optional[int] = ..., caused_by_peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., handshake_id: _Optional[int] = ...) -> None: ...

class BlocksPinned(_message.Message):
    __slots__ = ("channel", "peer", "blocks", "since_time_unix_nano", "released")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    peer: _common_pb2.Peer
    blocks: int
    since_time_unix_nano: int
    released: bool
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., blocks: _Optional[int] = ..., since_time_unix_nano: _Optional[int] = ..., released: bool = ...) -> None: ...
