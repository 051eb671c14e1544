from google.protobuf import duration_pb2 as _duration_pb2
from penstock.proto.v1 import common_pb2 as _common_pb2
from penstock.proto.v1 import events_pb2 as _events_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_ACTION_UNSPECIFIED: _ClassVar[FailureAction]
    FAILURE_ACTION_RECOMPUTE: _ClassVar[FailureAction]
    FAILURE_ACTION_FAIL: _ClassVar[FailureAction]
    FAILURE_ACTION_AUTO: _ClassVar[FailureAction]

class IntegrityAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTEGRITY_ACTION_UNSPECIFIED: _ClassVar[IntegrityAction]
    INTEGRITY_ACTION_OBSERVE: _ClassVar[IntegrityAction]
    INTEGRITY_ACTION_ENFORCE: _ClassVar[IntegrityAction]

class ReflexAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFLEX_ACTION_UNSPECIFIED: _ClassVar[ReflexAction]
    REFLEX_ACTION_OBSERVE: _ClassVar[ReflexAction]
    REFLEX_ACTION_ENFORCE: _ClassVar[ReflexAction]
FAILURE_ACTION_UNSPECIFIED: FailureAction
FAILURE_ACTION_RECOMPUTE: FailureAction
FAILURE_ACTION_FAIL: FailureAction
FAILURE_ACTION_AUTO: FailureAction
INTEGRITY_ACTION_UNSPECIFIED: IntegrityAction
INTEGRITY_ACTION_OBSERVE: IntegrityAction
INTEGRITY_ACTION_ENFORCE: IntegrityAction
REFLEX_ACTION_UNSPECIFIED: ReflexAction
REFLEX_ACTION_OBSERVE: ReflexAction
REFLEX_ACTION_ENFORCE: ReflexAction

class Report(_message.Message):
    __slots__ = ("subscribe", "ack", "nack", "moved", "stacks")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    ack: PolicyAck
    nack: PolicyNack
    moved: PolicyMoved
    stacks: StackDump
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., ack: _Optional[_Union[PolicyAck, _Mapping]] = ..., nack: _Optional[_Union[PolicyNack, _Mapping]] = ..., moved: _Optional[_Union[PolicyMoved, _Mapping]] = ..., stacks: _Optional[_Union[StackDump, _Mapping]] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("schema_version", "epoch", "key", "model", "labels", "hash_in_force", "supported_fields", "faults_allowed", "paused", "secret", "takes_policy_names")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    HASH_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    TAKES_POLICY_NAMES_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    epoch: int
    key: _common_pb2.EngineKey
    model: str
    labels: _containers.ScalarMap[str, str]
    hash_in_force: str
    supported_fields: _containers.RepeatedScalarFieldContainer[str]
    faults_allowed: bool
    paused: bool
    secret: bytes
    takes_policy_names: bool
    def __init__(self, schema_version: _Optional[int] = ..., epoch: _Optional[int] = ..., key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., model: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., hash_in_force: _Optional[str] = ..., supported_fields: _Optional[_Iterable[str]] = ..., faults_allowed: bool = ..., paused: bool = ..., secret: _Optional[bytes] = ..., takes_policy_names: bool = ...) -> None: ...

class PolicyAck(_message.Message):
    __slots__ = ("nonce", "hash", "paused", "refused_orders")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ORDERS_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    hash: str
    paused: bool
    refused_orders: _containers.RepeatedCompositeFieldContainer[OrderRefusal]
    def __init__(self, nonce: _Optional[int] = ..., hash: _Optional[str] = ..., paused: bool = ..., refused_orders: _Optional[_Iterable[_Union[OrderRefusal, _Mapping]]] = ...) -> None: ...

class PolicyNack(_message.Message):
    __slots__ = ("nonce", "field", "error", "hash_in_force", "refused_orders")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HASH_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ORDERS_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    field: str
    error: str
    hash_in_force: str
    refused_orders: _containers.RepeatedCompositeFieldContainer[OrderRefusal]
    def __init__(self, nonce: _Optional[int] = ..., field: _Optional[str] = ..., error: _Optional[str] = ..., hash_in_force: _Optional[str] = ..., refused_orders: _Optional[_Iterable[_Union[OrderRefusal, _Mapping]]] = ...) -> None: ...

class OrderRefusal(_message.Message):
    __slots__ = ("id", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    error: str
    def __init__(self, id: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class PolicyMoved(_message.Message):
    __slots__ = ("hash",)
    HASH_FIELD_NUMBER: _ClassVar[int]
    hash: str
    def __init__(self, hash: _Optional[str] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("nonce", "schedule", "paused", "drills", "quarantines", "stacks")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    schedule: _containers.RepeatedCompositeFieldContainer[ScheduledPolicy]
    paused: bool
    drills: _containers.RepeatedCompositeFieldContainer[FaultDrill]
    quarantines: _containers.RepeatedCompositeFieldContainer[QuarantineOrder]
    stacks: StackRequest
    def __init__(self, nonce: _Optional[int] = ..., schedule: _Optional[_Iterable[_Union[ScheduledPolicy, _Mapping]]] = ..., paused: bool = ..., drills: _Optional[_Iterable[_Union[FaultDrill, _Mapping]]] = ..., quarantines: _Optional[_Iterable[_Union[QuarantineOrder, _Mapping]]] = ..., stacks: _Optional[_Union[StackRequest, _Mapping]] = ...) -> None: ...

class StackRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class StackDump(_message.Message):
    __slots__ = ("id", "refusal", "time_unix_nano", "process", "pid", "threads", "threads_left_out")
    ID_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    THREADS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    id: int
    refusal: str
    time_unix_nano: int
    process: str
    pid: int
    threads: _containers.RepeatedCompositeFieldContainer[ThreadStack]
    threads_left_out: int
    def __init__(self, id: _Optional[int] = ..., refusal: _Optional[str] = ..., time_unix_nano: _Optional[int] = ..., process: _Optional[str] = ..., pid: _Optional[int] = ..., threads: _Optional[_Iterable[_Union[ThreadStack, _Mapping]]] = ..., threads_left_out: _Optional[int] = ...) -> None: ...

class ThreadStack(_message.Message):
    __slots__ = ("name", "daemon", "frames", "frames_left_out")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    daemon: bool
    frames: _containers.RepeatedCompositeFieldContainer[StackFrame]
    frames_left_out: int
    def __init__(self, name: _Optional[str] = ..., daemon: bool = ..., frames: _Optional[_Iterable[_Union[StackFrame, _Mapping]]] = ..., frames_left_out: _Optional[int] = ...) -> None: ...

class StackFrame(_message.Message):
    __slots__ = ("function", "file", "line", "module")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    function: str
    file: str
    line: int
    module: str
    def __init__(self, function: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., module: _Optional[str] = ...) -> None: ...

class ScheduledPolicy(_message.Message):
    __slots__ = ("hash", "body", "observed", "valid_for", "policies")
    HASH_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    hash: str
    body: PolicyBody
    observed: PolicyBody
    valid_for: _duration_pb2.Duration
    policies: _containers.RepeatedCompositeFieldContainer[_common_pb2.PolicySource]
    def __init__(self, hash: _Optional[str] = ..., body: _Optional[_Union[PolicyBody, _Mapping]] = ..., observed: _Optional[_Union[PolicyBody, _Mapping]] = ..., valid_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., policies: _Optional[_Iterable[_Union[_common_pb2.PolicySource, _Mapping]]] = ...) -> None: ...

class PolicyBody(_message.Message):
    __slots__ = ("kv_load_failure", "ec_load_failure", "deferral", "peer_quarantine", "telemetry", "integrity", "reflexes")
    KV_LOAD_FAILURE_FIELD_NUMBER: _ClassVar[int]
    EC_LOAD_FAILURE_FIELD_NUMBER: _ClassVar[int]
    DEFERRAL_FIELD_NUMBER: _ClassVar[int]
    PEER_QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    INTEGRITY_FIELD_NUMBER: _ClassVar[int]
    REFLEXES_FIELD_NUMBER: _ClassVar[int]
    kv_load_failure: KvLoadFailure
    ec_load_failure: EcLoadFailure
    deferral: Deferral
    peer_quarantine: PeerQuarantine
    telemetry: Telemetry
    integrity: Integrity
    reflexes: Reflexes
    def __init__(self, kv_load_failure: _Optional[_Union[KvLoadFailure, _Mapping]] = ..., ec_load_failure: _Optional[_Union[EcLoadFailure, _Mapping]] = ..., deferral: _Optional[_Union[Deferral, _Mapping]] = ..., peer_quarantine: _Optional[_Union[PeerQuarantine, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., integrity: _Optional[_Union[Integrity, _Mapping]] = ..., reflexes: _Optional[_Union[Reflexes, _Mapping]] = ...) -> None: ...

class KvLoadFailure(_message.Message):
    __slots__ = ("action", "max_recompute_tokens", "recompute_budget", "over_budget")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MAX_RECOMPUTE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    OVER_BUDGET_FIELD_NUMBER: _ClassVar[int]
    action: FailureAction
    max_recompute_tokens: int
    recompute_budget: RecomputeBudget
    over_budget: FailureAction
    def __init__(self, action: _Optional[_Union[FailureAction, str]] = ..., max_recompute_tokens: _Optional[int] = ..., recompute_budget: _Optional[_Union[RecomputeBudget, _Mapping]] = ..., over_budget: _Optional[_Union[FailureAction, str]] = ...) -> None: ...

class RecomputeBudget(_message.Message):
    __slots__ = ("tokens_per_second",)
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    tokens_per_second: int
    def __init__(self, tokens_per_second: _Optional[int] = ...) -> None: ...

class EcLoadFailure(_message.Message):
    __slots__ = ("action", "max_recompute_items")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MAX_RECOMPUTE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    action: FailureAction
    max_recompute_items: int
    def __init__(self, action: _Optional[_Union[FailureAction, str]] = ..., max_recompute_items: _Optional[int] = ...) -> None: ...

class Deferral(_message.Message):
    __slots__ = ("max_start_wait", "max_transfer_wait", "on_timeout")
    MAX_START_WAIT_FIELD_NUMBER: _ClassVar[int]
    MAX_TRANSFER_WAIT_FIELD_NUMBER: _ClassVar[int]
    ON_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    max_start_wait: _duration_pb2.Duration
    max_transfer_wait: _duration_pb2.Duration
    on_timeout: FailureAction
    def __init__(self, max_start_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_transfer_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., on_timeout: _Optional[_Union[FailureAction, str]] = ...) -> None: ...

class PeerQuarantine(_message.Message):
    __slots__ = ("failures", "window", "duration", "max_peers_percent")
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    MAX_PEERS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    failures: int
    window: _duration_pb2.Duration
    duration: _duration_pb2.Duration
    max_peers_percent: int
    def __init__(self, failures: _Optional[int] = ..., window: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_peers_percent: _Optional[int] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("trace_sample_ratio", "failure_log_interval")
    TRACE_SAMPLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    FAILURE_LOG_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    trace_sample_ratio: float
    failure_log_interval: _duration_pb2.Duration
    def __init__(self, trace_sample_ratio: _Optional[float] = ..., failure_log_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Integrity(_message.Message):
    __slots__ = ("sample_ratio", "action")
    SAMPLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    sample_ratio: float
    action: IntegrityAction
    def __init__(self, sample_ratio: _Optional[float] = ..., action: _Optional[_Union[IntegrityAction, str]] = ...) -> None: ...

class Reflexes(_message.Message):
    __slots__ = ("per_minute", "start_wait", "slow_peer", "recompute_storm")
    PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    START_WAIT_FIELD_NUMBER: _ClassVar[int]
    SLOW_PEER_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_STORM_FIELD_NUMBER: _ClassVar[int]
    per_minute: int
    start_wait: StartWaitReflex
    slow_peer: SlowPeerReflex
    recompute_storm: RecomputeStormReflex
    def __init__(self, per_minute: _Optional[int] = ..., start_wait: _Optional[_Union[StartWaitReflex, _Mapping]] = ..., slow_peer: _Optional[_Union[SlowPeerReflex, _Mapping]] = ..., recompute_storm: _Optional[_Union[RecomputeStormReflex, _Mapping]] = ...) -> None: ...

class StartWaitReflex(_message.Message):
    __slots__ = ("action", "factor", "min_wait")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    MIN_WAIT_FIELD_NUMBER: _ClassVar[int]
    action: ReflexAction
    factor: float
    min_wait: _duration_pb2.Duration
    def __init__(self, action: _Optional[_Union[ReflexAction, str]] = ..., factor: _Optional[float] = ..., min_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SlowPeerReflex(_message.Message):
    __slots__ = ("action", "factor")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    action: ReflexAction
    factor: float
    def __init__(self, action: _Optional[_Union[ReflexAction, str]] = ..., factor: _Optional[float] = ...) -> None: ...

class RecomputeStormReflex(_message.Message):
    __slots__ = ("action", "queue_wait")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    action: ReflexAction
    queue_wait: _duration_pb2.Duration
    def __init__(self, action: _Optional[_Union[ReflexAction, str]] = ..., queue_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FaultDrill(_message.Message):
    __slots__ = ("id", "channel", "mode", "rate", "peer", "delay", "valid_for")
    ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    channel: _common_pb2.Channel
    mode: _common_pb2.FailureMode
    rate: float
    peer: str
    delay: _duration_pb2.Duration
    valid_for: _duration_pb2.Duration
    def __init__(self, id: _Optional[str] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., mode: _Optional[_Union[_common_pb2.FailureMode, str]] = ..., rate: _Optional[float] = ..., peer: _Optional[str] = ..., delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., valid_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class QuarantineOrder(_message.Message):
    __slots__ = ("id", "peer", "state", "valid_for")
    ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    peer: str
    state: _events_pb2.QuarantineState
    valid_for: _duration_pb2.Duration
    def __init__(self, id: _Optional[str] = ..., peer: _Optional[str] = ..., state: _Optional[_Union[_events_pb2.QuarantineState, str]] = ..., valid_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
