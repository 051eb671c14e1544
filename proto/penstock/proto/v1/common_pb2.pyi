from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Channel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_UNSPECIFIED: _ClassVar[Channel]
    CHANNEL_KV: _ClassVar[Channel]
    CHANNEL_EC: _ClassVar[Channel]
    CHANNEL_EPLB: _ClassVar[Channel]

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTION_UNSPECIFIED: _ClassVar[Direction]
    DIRECTION_RECEIVE: _ClassVar[Direction]
    DIRECTION_SEND: _ClassVar[Direction]

class Component(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPONENT_UNSPECIFIED: _ClassVar[Component]
    COMPONENT_SCHEDULER: _ClassVar[Component]
    COMPONENT_WORKER: _ClassVar[Component]
    COMPONENT_FRONTEND: _ClassVar[Component]

class TransferResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSFER_RESULT_UNSPECIFIED: _ClassVar[TransferResult]
    TRANSFER_RESULT_OK: _ClassVar[TransferResult]
    TRANSFER_RESULT_ERROR: _ClassVar[TransferResult]

class FailureMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_MODE_UNSPECIFIED: _ClassVar[FailureMode]
    FAILURE_MODE_HANDSHAKE: _ClassVar[FailureMode]
    FAILURE_MODE_SETUP: _ClassVar[FailureMode]
    FAILURE_MODE_TRANSFER: _ClassVar[FailureMode]
    FAILURE_MODE_EXCEPTION: _ClassVar[FailureMode]
    FAILURE_MODE_NOTIFICATION: _ClassVar[FailureMode]
    FAILURE_MODE_RELEASE: _ClassVar[FailureMode]
    FAILURE_MODE_TIMEOUT: _ClassVar[FailureMode]
    FAILURE_MODE_LOAD: _ClassVar[FailureMode]
    FAILURE_MODE_PROBE: _ClassVar[FailureMode]
    FAILURE_MODE_EXPIRED: _ClassVar[FailureMode]
    FAILURE_MODE_LATE_READ: _ClassVar[FailureMode]
    FAILURE_MODE_COLLATERAL: _ClassVar[FailureMode]

class ErrorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_TYPE_UNSPECIFIED: _ClassVar[ErrorType]
    ERROR_TYPE_OTHER: _ClassVar[ErrorType]
    ERROR_TYPE_REFUSED: _ClassVar[ErrorType]
    ERROR_TYPE_TIMEOUT: _ClassVar[ErrorType]
    ERROR_TYPE_INCOMPATIBLE: _ClassVar[ErrorType]
    ERROR_TYPE_DECODE: _ClassVar[ErrorType]
    ERROR_TYPE_REMOTE_RESET: _ClassVar[ErrorType]
    ERROR_TYPE_CORRUPT: _ClassVar[ErrorType]
    ERROR_TYPE_EVICTED: _ClassVar[ErrorType]
    ERROR_TYPE_WRONG_ENGINE: _ClassVar[ErrorType]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_RECOMPUTED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_ABORTED: _ClassVar[Outcome]
    OUTCOME_RETRIED: _ClassVar[Outcome]

class DecidedBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECIDED_BY_UNSPECIFIED: _ClassVar[DecidedBy]
    DECIDED_BY_VLLM: _ClassVar[DecidedBy]
    DECIDED_BY_POLICY: _ClassVar[DecidedBy]
    DECIDED_BY_QUARANTINE: _ClassVar[DecidedBy]
    DECIDED_BY_BUDGET: _ClassVar[DecidedBy]
    DECIDED_BY_DEADLINE: _ClassVar[DecidedBy]
    DECIDED_BY_REFLEX: _ClassVar[DecidedBy]

class DeferralReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEFERRAL_REASON_UNSPECIFIED: _ClassVar[DeferralReason]
    DEFERRAL_REASON_OTHER: _ClassVar[DeferralReason]
    DEFERRAL_REASON_REMOTE_KV: _ClassVar[DeferralReason]
    DEFERRAL_REASON_KV_LOOKUP: _ClassVar[DeferralReason]
    DEFERRAL_REASON_ENCODER_CACHE: _ClassVar[DeferralReason]
    DEFERRAL_REASON_GRAMMAR: _ClassVar[DeferralReason]
    DEFERRAL_REASON_STREAMING_INPUT: _ClassVar[DeferralReason]

class DeferralEnding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEFERRAL_ENDING_UNSPECIFIED: _ClassVar[DeferralEnding]
    DEFERRAL_ENDING_READY: _ClassVar[DeferralEnding]
    DEFERRAL_ENDING_TIMEOUT: _ClassVar[DeferralEnding]
    DEFERRAL_ENDING_ABORTED: _ClassVar[DeferralEnding]
    DEFERRAL_ENDING_ENGINE_LOST: _ClassVar[DeferralEnding]

class ProbeResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBE_RESULT_UNSPECIFIED: _ClassVar[ProbeResult]
    PROBE_RESULT_HIT: _ClassVar[ProbeResult]
    PROBE_RESULT_MISS: _ClassVar[ProbeResult]
    PROBE_RESULT_ERROR: _ClassVar[ProbeResult]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_ENCODER: _ClassVar[Role]
    ROLE_BOTH: _ClassVar[Role]

class AddressOwner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADDRESS_OWNER_UNSPECIFIED: _ClassVar[AddressOwner]
    ADDRESS_OWNER_SAME: _ClassVar[AddressOwner]
    ADDRESS_OWNER_OTHER: _ClassVar[AddressOwner]
CHANNEL_UNSPECIFIED: Channel
CHANNEL_KV: Channel
CHANNEL_EC: Channel
CHANNEL_EPLB: Channel
DIRECTION_UNSPECIFIED: Direction
DIRECTION_RECEIVE: Direction
DIRECTION_SEND: Direction
COMPONENT_UNSPECIFIED: Component
COMPONENT_SCHEDULER: Component
COMPONENT_WORKER: Component
COMPONENT_FRONTEND: Component
TRANSFER_RESULT_UNSPECIFIED: TransferResult
TRANSFER_RESULT_OK: TransferResult
TRANSFER_RESULT_ERROR: TransferResult
FAILURE_MODE_UNSPECIFIED: FailureMode
FAILURE_MODE_HANDSHAKE: FailureMode
FAILURE_MODE_SETUP: FailureMode
FAILURE_MODE_TRANSFER: FailureMode
FAILURE_MODE_EXCEPTION: FailureMode
FAILURE_MODE_NOTIFICATION: FailureMode
FAILURE_MODE_RELEASE: FailureMode
FAILURE_MODE_TIMEOUT: FailureMode
FAILURE_MODE_LOAD: FailureMode
FAILURE_MODE_PROBE: FailureMode
FAILURE_MODE_EXPIRED: FailureMode
FAILURE_MODE_LATE_READ: FailureMode
FAILURE_MODE_COLLATERAL: FailureMode
ERROR_TYPE_UNSPECIFIED: ErrorType
ERROR_TYPE_OTHER: ErrorType
ERROR_TYPE_REFUSED: ErrorType
ERROR_TYPE_TIMEOUT: ErrorType
ERROR_TYPE_INCOMPATIBLE: ErrorType
ERROR_TYPE_DECODE: ErrorType
ERROR_TYPE_REMOTE_RESET: ErrorType
ERROR_TYPE_CORRUPT: ErrorType
ERROR_TYPE_EVICTED: ErrorType
ERROR_TYPE_WRONG_ENGINE: ErrorType
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_RECOMPUTED: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_ABORTED: Outcome
OUTCOME_RETRIED: Outcome
DECIDED_BY_UNSPECIFIED: DecidedBy
DECIDED_BY_VLLM: DecidedBy
DECIDED_BY_POLICY: DecidedBy
DECIDED_BY_QUARANTINE: DecidedBy
DECIDED_BY_BUDGET: DecidedBy
DECIDED_BY_DEADLINE: DecidedBy
DECIDED_BY_REFLEX: DecidedBy
DEFERRAL_REASON_UNSPECIFIED: DeferralReason
DEFERRAL_REASON_OTHER: DeferralReason
DEFERRAL_REASON_REMOTE_KV: DeferralReason
DEFERRAL_REASON_KV_LOOKUP: DeferralReason
DEFERRAL_REASON_ENCODER_CACHE: DeferralReason
DEFERRAL_REASON_GRAMMAR: DeferralReason
DEFERRAL_REASON_STREAMING_INPUT: DeferralReason
DEFERRAL_ENDING_UNSPECIFIED: DeferralEnding
DEFERRAL_ENDING_READY: DeferralEnding
DEFERRAL_ENDING_TIMEOUT: DeferralEnding
DEFERRAL_ENDING_ABORTED: DeferralEnding
DEFERRAL_ENDING_ENGINE_LOST: DeferralEnding
PROBE_RESULT_UNSPECIFIED: ProbeResult
PROBE_RESULT_HIT: ProbeResult
PROBE_RESULT_MISS: ProbeResult
PROBE_RESULT_ERROR: ProbeResult
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_ENCODER: Role
ROLE_BOTH: Role
ADDRESS_OWNER_UNSPECIFIED: AddressOwner
ADDRESS_OWNER_SAME: AddressOwner
ADDRESS_OWNER_OTHER: AddressOwner

class Peer(_message.Message):
    __slots__ = ("address", "engine_id", "rank")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    address: str
    engine_id: str
    rank: int
    def __init__(self, address: _Optional[str] = ..., engine_id: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class EngineKey(_message.Message):
    __slots__ = ("server", "engine")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    server: str
    engine: str
    def __init__(self, server: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class PolicySource(_message.Message):
    __slots__ = ("name", "generation", "author", "changed_time_unix_nano", "fields")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    CHANGED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    author: str
    changed_time_unix_nano: int
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., author: _Optional[str] = ..., changed_time_unix_nano: _Optional[int] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...
