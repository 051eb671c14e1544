from penstock.proto.v1 import common_pb2 as _common_pb2
from penstock.proto.v1 import events_pb2 as _events_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUEUE_REASON_UNSPECIFIED: _ClassVar[QueueReason]
    QUEUE_REASON_OTHER: _ClassVar[QueueReason]
    QUEUE_REASON_NEXT_STEP: _ClassVar[QueueReason]
    QUEUE_REASON_CAPACITY: _ClassVar[QueueReason]
    QUEUE_REASON_RUNNING_LIMIT: _ClassVar[QueueReason]
    QUEUE_REASON_PAUSED: _ClassVar[QueueReason]
    QUEUE_REASON_LORA_SLOTS: _ClassVar[QueueReason]
    QUEUE_REASON_REMOTE_KV: _ClassVar[QueueReason]
    QUEUE_REASON_KV_LOOKUP: _ClassVar[QueueReason]
    QUEUE_REASON_ENCODER_CACHE: _ClassVar[QueueReason]
    QUEUE_REASON_GRAMMAR: _ClassVar[QueueReason]
    QUEUE_REASON_STREAMING_INPUT: _ClassVar[QueueReason]

class SchedulerPause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULER_PAUSE_UNSPECIFIED: _ClassVar[SchedulerPause]
    SCHEDULER_PAUSE_NEW: _ClassVar[SchedulerPause]
    SCHEDULER_PAUSE_ALL: _ClassVar[SchedulerPause]

class BlockHolder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_HOLDER_UNSPECIFIED: _ClassVar[BlockHolder]
    BLOCK_HOLDER_LOAD: _ClassVar[BlockHolder]
    BLOCK_HOLDER_PINNED: _ClassVar[BlockHolder]
    BLOCK_HOLDER_ABORTED: _ClassVar[BlockHolder]
    BLOCK_HOLDER_SAVE: _ClassVar[BlockHolder]
    BLOCK_HOLDER_LEASE: _ClassVar[BlockHolder]
QUEUE_REASON_UNSPECIFIED: QueueReason
QUEUE_REASON_OTHER: QueueReason
QUEUE_REASON_NEXT_STEP: QueueReason
QUEUE_REASON_CAPACITY: QueueReason
QUEUE_REASON_RUNNING_LIMIT: QueueReason
QUEUE_REASON_PAUSED: QueueReason
QUEUE_REASON_LORA_SLOTS: QueueReason
QUEUE_REASON_REMOTE_KV: QueueReason
QUEUE_REASON_KV_LOOKUP: QueueReason
QUEUE_REASON_ENCODER_CACHE: QueueReason
QUEUE_REASON_GRAMMAR: QueueReason
QUEUE_REASON_STREAMING_INPUT: QueueReason
SCHEDULER_PAUSE_UNSPECIFIED: SchedulerPause
SCHEDULER_PAUSE_NEW: SchedulerPause
SCHEDULER_PAUSE_ALL: SchedulerPause
BLOCK_HOLDER_UNSPECIFIED: BlockHolder
BLOCK_HOLDER_LOAD: BlockHolder
BLOCK_HOLDER_PINNED: BlockHolder
BLOCK_HOLDER_ABORTED: BlockHolder
BLOCK_HOLDER_SAVE: BlockHolder
BLOCK_HOLDER_LEASE: BlockHolder

class Snapshot(_message.Message):
    __slots__ = ("time_unix_nano", "in_flight", "deferred", "leases", "peers", "engine", "policy", "hooks", "emitter", "paused", "eplb", "held", "upstream_counts", "progress", "transfer", "queue", "out_of_rotation_until_unix_nano")
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    HOOKS_FIELD_NUMBER: _ClassVar[int]
    EMITTER_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    EPLB_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_ROTATION_UNTIL_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    time_unix_nano: int
    in_flight: _containers.RepeatedCompositeFieldContainer[InFlight]
    deferred: _containers.RepeatedCompositeFieldContainer[Deferred]
    leases: Leases
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    engine: EngineFacts
    policy: PolicyStatus
    hooks: _containers.RepeatedCompositeFieldContainer[Hook]
    emitter: Emitter
    paused: bool
    eplb: EplbFacts
    held: _containers.RepeatedCompositeFieldContainer[HeldBlocks]
    upstream_counts: _containers.RepeatedCompositeFieldContainer[UpstreamCount]
    progress: Progress
    transfer: TransferFacts
    queue: SchedulerQueue
    out_of_rotation_until_unix_nano: int
    def __init__(self, time_unix_nano: _Optional[int] = ..., in_flight: _Optional[_Iterable[_Union[InFlight, _Mapping]]] = ..., deferred: _Optional[_Iterable[_Union[Deferred, _Mapping]]] = ..., leases: _Optional[_Union[Leases, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., engine: _Optional[_Union[EngineFacts, _Mapping]] = ..., policy: _Optional[_Union[PolicyStatus, _Mapping]] = ..., hooks: _Optional[_Iterable[_Union[Hook, _Mapping]]] = ..., emitter: _Optional[_Union[Emitter, _Mapping]] = ..., paused: bool = ..., eplb: _Optional[_Union[EplbFacts, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldBlocks, _Mapping]]] = ..., upstream_counts: _Optional[_Iterable[_Union[UpstreamCount, _Mapping]]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., transfer: _Optional[_Union[TransferFacts, _Mapping]] = ..., queue: _Optional[_Union[SchedulerQueue, _Mapping]] = ..., out_of_rotation_until_unix_nano: _Optional[int] = ...) -> None: ...

class SchedulerQueue(_message.Message):
    __slots__ = ("running", "waiting", "total_blocks", "free_blocks", "pause", "pause_start_time_unix_nano", "last_step_time_unix_nano", "last_step_tokens", "empty_steps", "requests")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_STEPS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingRequests]
    total_blocks: int
    free_blocks: int
    pause: SchedulerPause
    pause_start_time_unix_nano: int
    last_step_time_unix_nano: int
    last_step_tokens: int
    empty_steps: int
    requests: _containers.RepeatedCompositeFieldContainer[QueuedRequest]
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[WaitingRequests, _Mapping]]] = ..., total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., pause: _Optional[_Union[SchedulerPause, str]] = ..., pause_start_time_unix_nano: _Optional[int] = ..., last_step_time_unix_nano: _Optional[int] = ..., last_step_tokens: _Optional[int] = ..., empty_steps: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[QueuedRequest, _Mapping]]] = ...) -> None: ...

class WaitingRequests(_message.Message):
    __slots__ = ("reason", "count", "oldest_start_time_unix_nano")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    reason: QueueReason
    count: int
    oldest_start_time_unix_nano: int
    def __init__(self, reason: _Optional[_Union[QueueReason, str]] = ..., count: _Optional[int] = ..., oldest_start_time_unix_nano: _Optional[int] = ...) -> None: ...

class QueuedRequest(_message.Message):
    __slots__ = ("request_id", "waiting", "arrival_time_unix_nano", "blocks", "prompt_tokens", "computed_tokens", "peer")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    waiting: QueueReason
    arrival_time_unix_nano: int
    blocks: int
    prompt_tokens: int
    computed_tokens: int
    peer: _common_pb2.Peer
    def __init__(self, request_id: _Optional[str] = ..., waiting: _Optional[_Union[QueueReason, str]] = ..., arrival_time_unix_nano: _Optional[int] = ..., blocks: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("steps", "step_start_time_unix_nano", "requests", "requests_to_load", "unloaded_requests", "unstarted", "handshaking", "calls", "eplb", "threads")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_TO_LOAD_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNSTARTED_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKING_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    EPLB_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    step_start_time_unix_nano: int
    requests: int
    requests_to_load: int
    unloaded_requests: int
    unstarted: _containers.RepeatedCompositeFieldContainer[Waiting]
    handshaking: _containers.RepeatedCompositeFieldContainer[Waiting]
    calls: _containers.RepeatedCompositeFieldContainer[OpenCall]
    eplb: _containers.RepeatedCompositeFieldContainer[EplbProgress]
    threads: _containers.RepeatedCompositeFieldContainer[ConnectorThread]
    def __init__(self, steps: _Optional[int] = ..., step_start_time_unix_nano: _Optional[int] = ..., requests: _Optional[int] = ..., requests_to_load: _Optional[int] = ..., unloaded_requests: _Optional[int] = ..., unstarted: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., handshaking: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[OpenCall, _Mapping]]] = ..., eplb: _Optional[_Iterable[_Union[EplbProgress, _Mapping]]] = ..., threads: _Optional[_Iterable[_Union[ConnectorThread, _Mapping]]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("peer", "count", "oldest_start_time_unix_nano")
    PEER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    peer: _common_pb2.Peer
    count: int
    oldest_start_time_unix_nano: int
    def __init__(self, peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., count: _Optional[int] = ..., oldest_start_time_unix_nano: _Optional[int] = ...) -> None: ...

class OpenCall(_message.Message):
    __slots__ = ("name", "connector", "channel", "rank", "start_time_unix_nano")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    name: str
    connector: str
    channel: _common_pb2.Channel
    rank: int
    start_time_unix_nano: int
    def __init__(self, name: _Optional[str] = ..., connector: _Optional[str] = ..., channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., rank: _Optional[int] = ..., start_time_unix_nano: _Optional[int] = ...) -> None: ...

class EplbProgress(_message.Message):
    __slots__ = ("rank", "steps", "last_begun_step", "open_start_time_unix_nano")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_BEGUN_STEP_FIELD_NUMBER: _ClassVar[int]
    OPEN_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    rank: int
    steps: int
    last_begun_step: int
    open_start_time_unix_nano: int
    def __init__(self, rank: _Optional[int] = ..., steps: _Optional[int] = ..., last_begun_step: _Optional[int] = ..., open_start_time_unix_nano: _Optional[int] = ...) -> None: ...

class ConnectorThread(_message.Message):
    __slots__ = ("name", "alive", "ended_time_unix_nano")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    ENDED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    name: str
    alive: int
    ended_time_unix_nano: int
    def __init__(self, name: _Optional[str] = ..., alive: _Optional[int] = ..., ended_time_unix_nano: _Optional[int] = ...) -> None: ...

class TransferFacts(_message.Message):
    __slots__ = ("connector", "rank", "kv_layout", "attention_backend", "memory", "backends", "parameters", "environment", "default_parameters", "released_time_unix_nano")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class DefaultParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    connector: str
    rank: int
    kv_layout: str
    attention_backend: str
    memory: str
    backends: _containers.RepeatedScalarFieldContainer[str]
    parameters: _containers.ScalarMap[str, str]
    environment: _containers.ScalarMap[str, str]
    default_parameters: _containers.ScalarMap[str, str]
    released_time_unix_nano: int
    def __init__(self, connector: _Optional[str] = ..., rank: _Optional[int] = ..., kv_layout: _Optional[str] = ..., attention_backend: _Optional[str] = ..., memory: _Optional[str] = ..., backends: _Optional[_Iterable[str]] = ..., parameters: _Optional[_Mapping[str, str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., default_parameters: _Optional[_Mapping[str, str]] = ..., released_time_unix_nano: _Optional[int] = ...) -> None: ...

class UpstreamCount(_message.Message):
    __slots__ = ("name", "upstream", "seen", "connector", "rank")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    name: str
    upstream: int
    seen: int
    connector: str
    rank: int
    def __init__(self, name: _Optional[str] = ..., upstream: _Optional[int] = ..., seen: _Optional[int] = ..., connector: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class InFlight(_message.Message):
    __slots__ = ("channel", "connector", "peer", "count", "oldest_start_time_unix_nano", "component", "rank")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    channel: _common_pb2.Channel
    connector: str
    peer: _common_pb2.Peer
    count: int
    oldest_start_time_unix_nano: int
    component: _common_pb2.Component
    rank: int
    def __init__(self, channel: _Optional[_Union[_common_pb2.Channel, str]] = ..., connector: _Optional[str] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., count: _Optional[int] = ..., oldest_start_time_unix_nano: _Optional[int] = ..., component: _Optional[_Union[_common_pb2.Component, str]] = ..., rank: _Optional[int] = ...) -> None: ...

class Deferred(_message.Message):
    __slots__ = ("reason", "peer", "count", "oldest_start_time_unix_nano")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.DeferralReason
    peer: _common_pb2.Peer
    count: int
    oldest_start_time_unix_nano: int
    def __init__(self, reason: _Optional[_Union[_common_pb2.DeferralReason, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., count: _Optional[int] = ..., oldest_start_time_unix_nano: _Optional[int] = ...) -> None: ...

class Leases(_message.Message):
    __slots__ = ("count", "blocks", "oldest_start_time_unix_nano")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    count: int
    blocks: int
    oldest_start_time_unix_nano: int
    def __init__(self, count: _Optional[int] = ..., blocks: _Optional[int] = ..., oldest_start_time_unix_nano: _Optional[int] = ...) -> None: ...

class HeldBlocks(_message.Message):
    __slots__ = ("holder", "peer", "requests", "blocks", "oldest_start_time_unix_nano")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    holder: BlockHolder
    peer: _common_pb2.Peer
    requests: int
    blocks: int
    oldest_start_time_unix_nano: int
    def __init__(self, holder: _Optional[_Union[BlockHolder, str]] = ..., peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., requests: _Optional[int] = ..., blocks: _Optional[int] = ..., oldest_start_time_unix_nano: _Optional[int] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("peer", "connected", "clock_offset_nano", "upstream_invalid", "quarantine", "quarantine_until_unix_nano", "last_active_unix_nano", "tensor_parallel_size", "block_size", "handshake_error", "handshake_error_text", "handshake_factors", "other_addresses")
    PEER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_NANO_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_INVALID_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_UNTIL_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LAST_ACTIVE_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_ERROR_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FACTORS_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    peer: _common_pb2.Peer
    connected: bool
    clock_offset_nano: int
    upstream_invalid: bool
    quarantine: _events_pb2.QuarantineState
    quarantine_until_unix_nano: int
    last_active_unix_nano: int
    tensor_parallel_size: int
    block_size: int
    handshake_error: _common_pb2.ErrorType
    handshake_error_text: str
    handshake_factors: _containers.RepeatedScalarFieldContainer[str]
    other_addresses: _containers.RepeatedCompositeFieldContainer[OtherAddress]
    def __init__(self, peer: _Optional[_Union[_common_pb2.Peer, _Mapping]] = ..., connected: bool = ..., clock_offset_nano: _Optional[int] = ..., upstream_invalid: bool = ..., quarantine: _Optional[_Union[_events_pb2.QuarantineState, str]] = ..., quarantine_until_unix_nano: _Optional[int] = ..., last_active_unix_nano: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., block_size: _Optional[int] = ..., handshake_error: _Optional[_Union[_common_pb2.ErrorType, str]] = ..., handshake_error_text: _Optional[str] = ..., handshake_factors: _Optional[_Iterable[str]] = ..., other_addresses: _Optional[_Iterable[_Union[OtherAddress, _Mapping]]] = ...) -> None: ...

class OtherAddress(_message.Message):
    __slots__ = ("address", "owner", "transfers", "first_time_unix_nano")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    address: str
    owner: _common_pb2.AddressOwner
    transfers: int
    first_time_unix_nano: int
    def __init__(self, address: _Optional[str] = ..., owner: _Optional[_Union[_common_pb2.AddressOwner, str]] = ..., transfers: _Optional[int] = ..., first_time_unix_nano: _Optional[int] = ...) -> None: ...

class EngineFacts(_message.Message):
    __slots__ = ("model", "role", "role_guessed", "vllm_version", "kv_connector", "kv_role", "kv_engine_id", "kv_load_failure_policy", "ec_connector", "ec_role", "tensor_parallel_size", "data_parallel_size", "block_size", "num_gpu_blocks", "async_scheduling", "scheduler_class", "start_time_unix_nano", "side_channel", "labels", "compatibility_hash", "compatibility_factors", "faults_allowed", "pipeline_parallel_size", "transfer_mode", "kv_cache_dtype", "weights", "kv_heads", "latent_attention", "hybrid", "ec_address")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CompatibilityFactorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_GUESSED_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    KV_CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    KV_ROLE_FIELD_NUMBER: _ClassVar[int]
    KV_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    KV_LOAD_FAILURE_POLICY_FIELD_NUMBER: _ClassVar[int]
    EC_CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    EC_ROLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ASYNC_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_CLASS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_HASH_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FACTORS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_MODE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    LATENT_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    HYBRID_FIELD_NUMBER: _ClassVar[int]
    EC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    model: str
    role: _common_pb2.Role
    role_guessed: bool
    vllm_version: str
    kv_connector: str
    kv_role: str
    kv_engine_id: str
    kv_load_failure_policy: str
    ec_connector: str
    ec_role: str
    tensor_parallel_size: int
    data_parallel_size: int
    block_size: int
    num_gpu_blocks: int
    async_scheduling: bool
    scheduler_class: str
    start_time_unix_nano: int
    side_channel: str
    labels: _containers.ScalarMap[str, str]
    compatibility_hash: str
    compatibility_factors: _containers.ScalarMap[str, str]
    faults_allowed: bool
    pipeline_parallel_size: int
    transfer_mode: str
    kv_cache_dtype: str
    weights: WeightsFacts
    kv_heads: int
    latent_attention: bool
    hybrid: bool
    ec_address: str
    def __init__(self, model: _Optional[str] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., role_guessed: bool = ..., vllm_version: _Optional[str] = ..., kv_connector: _Optional[str] = ..., kv_role: _Optional[str] = ..., kv_engine_id: _Optional[str] = ..., kv_load_failure_policy: _Optional[str] = ..., ec_connector: _Optional[str] = ..., ec_role: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., data_parallel_size: _Optional[int] = ..., block_size: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., async_scheduling: bool = ..., scheduler_class: _Optional[str] = ..., start_time_unix_nano: _Optional[int] = ..., side_channel: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., compatibility_hash: _Optional[str] = ..., compatibility_factors: _Optional[_Mapping[str, str]] = ..., faults_allowed: bool = ..., pipeline_parallel_size: _Optional[int] = ..., transfer_mode: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., weights: _Optional[_Union[WeightsFacts, _Mapping]] = ..., kv_heads: _Optional[int] = ..., latent_attention: bool = ..., hybrid: bool = ..., ec_address: _Optional[str] = ...) -> None: ...

class WeightsFacts(_message.Message):
    __slots__ = ("revision", "digest", "files", "bytes", "config_digest", "unknown")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    revision: str
    digest: str
    files: int
    bytes: int
    config_digest: str
    unknown: str
    def __init__(self, revision: _Optional[str] = ..., digest: _Optional[str] = ..., files: _Optional[int] = ..., bytes: _Optional[int] = ..., config_digest: _Optional[str] = ..., unknown: _Optional[str] = ...) -> None: ...

class PolicyStatus(_message.Message):
    __slots__ = ("hash", "nonce", "connected", "changed_time_unix_nano", "expires_time_unix_nano", "kv_action", "ec_action", "last_error")
    HASH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    KV_ACTION_FIELD_NUMBER: _ClassVar[int]
    EC_ACTION_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    hash: str
    nonce: int
    connected: bool
    changed_time_unix_nano: int
    expires_time_unix_nano: int
    kv_action: str
    ec_action: str
    last_error: str
    def __init__(self, hash: _Optional[str] = ..., nonce: _Optional[int] = ..., connected: bool = ..., changed_time_unix_nano: _Optional[int] = ..., expires_time_unix_nano: _Optional[int] = ..., kv_action: _Optional[str] = ..., ec_action: _Optional[str] = ..., last_error: _Optional[str] = ...) -> None: ...

class Hook(_message.Message):
    __slots__ = ("name", "component", "installed", "reason", "missing_parts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MISSING_PARTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    component: _common_pb2.Component
    installed: bool
    reason: str
    missing_parts: _containers.RepeatedCompositeFieldContainer[HookPart]
    def __init__(self, name: _Optional[str] = ..., component: _Optional[_Union[_common_pb2.Component, str]] = ..., installed: bool = ..., reason: _Optional[str] = ..., missing_parts: _Optional[_Iterable[_Union[HookPart, _Mapping]]] = ...) -> None: ...

class HookPart(_message.Message):
    __slots__ = ("name", "lost", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    lost: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., lost: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Emitter(_message.Message):
    __slots__ = ("queued_entries", "unacknowledged_batches", "unacknowledged_bytes", "sent_batches", "reconnects", "produced_entries", "pending_entries")
    QUEUED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    RECONNECTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PENDING_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    queued_entries: int
    unacknowledged_batches: int
    unacknowledged_bytes: int
    sent_batches: int
    reconnects: int
    produced_entries: int
    pending_entries: int
    def __init__(self, queued_entries: _Optional[int] = ..., unacknowledged_batches: _Optional[int] = ..., unacknowledged_bytes: _Optional[int] = ..., sent_batches: _Optional[int] = ..., reconnects: _Optional[int] = ..., produced_entries: _Optional[int] = ..., pending_entries: _Optional[int] = ...) -> None: ...

class EplbFacts(_message.Message):
    __slots__ = ("enabled", "asynchronous", "step_interval", "window_size", "communicator")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ASYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    STEP_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    asynchronous: bool
    step_interval: int
    window_size: int
    communicator: str
    def __init__(self, enabled: bool = ..., asynchronous: bool = ..., step_interval: _Optional[int] = ..., window_size: _Optional[int] = ..., communicator: _Optional[str] = ...) -> None: ...
