from penstock.proto.v1 import common_pb2 as _common_pb2
from penstock.proto.v1 import events_pb2 as _events_pb2
from penstock.proto.v1 import samples_pb2 as _samples_pb2
from penstock.proto.v1 import snapshot_pb2 as _snapshot_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("epoch", "seq", "hello", "snapshot", "events", "transfers", "probes", "strings", "drops", "tombstone", "guard_errors", "goodbye")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    GUARD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    hello: Hello
    snapshot: _snapshot_pb2.Snapshot
    events: _containers.RepeatedCompositeFieldContainer[_events_pb2.Event]
    transfers: _samples_pb2.TransferSamples
    probes: _samples_pb2.ProbeSamples
    strings: _containers.RepeatedScalarFieldContainer[str]
    drops: _containers.RepeatedCompositeFieldContainer[Drop]
    tombstone: Tombstone
    guard_errors: _containers.RepeatedCompositeFieldContainer[GuardError]
    goodbye: Goodbye
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., snapshot: _Optional[_Union[_snapshot_pb2.Snapshot, _Mapping]] = ..., events: _Optional[_Iterable[_Union[_events_pb2.Event, _Mapping]]] = ..., transfers: _Optional[_Union[_samples_pb2.TransferSamples, _Mapping]] = ..., probes: _Optional[_Union[_samples_pb2.ProbeSamples, _Mapping]] = ..., strings: _Optional[_Iterable[str]] = ..., drops: _Optional[_Iterable[_Union[Drop, _Mapping]]] = ..., tombstone: _Optional[_Union[Tombstone, _Mapping]] = ..., guard_errors: _Optional[_Iterable[_Union[GuardError, _Mapping]]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("schema_version", "key", "process", "rank", "pid", "start_time_unix_nano", "penstock_version", "vllm_version", "model", "labels", "role", "role_guessed", "secret", "acknowledged", "acknowledged_entries")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    PENSTOCK_VERSION_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_GUESSED_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    key: _common_pb2.EngineKey
    process: str
    rank: int
    pid: int
    start_time_unix_nano: int
    penstock_version: str
    vllm_version: str
    model: str
    labels: _containers.ScalarMap[str, str]
    role: _common_pb2.Role
    role_guessed: bool
    secret: bytes
    acknowledged: int
    acknowledged_entries: int
    def __init__(self, schema_version: _Optional[int] = ..., key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., process: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., start_time_unix_nano: _Optional[int] = ..., penstock_version: _Optional[str] = ..., vllm_version: _Optional[str] = ..., model: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., role_guessed: bool = ..., secret: _Optional[bytes] = ..., acknowledged: _Optional[int] = ..., acknowledged_entries: _Optional[int] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("reason", "kind", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    kind: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., kind: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Tombstone(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[Drop]
    def __init__(self, lost: _Optional[_Iterable[_Union[Drop, _Mapping]]] = ...) -> None: ...

class GuardError(_message.Message):
    __slots__ = ("hook", "error_class", "count")
    HOOK_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    hook: str
    error_class: str
    count: int
    def __init__(self, hook: _Optional[str] = ..., error_class: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("epoch", "durable_watermark", "paused", "out_of_rotation_seconds")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURABLE_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_ROTATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    durable_watermark: int
    paused: bool
    out_of_rotation_seconds: int
    def __init__(self, epoch: _Optional[int] = ..., durable_watermark: _Optional[int] = ..., paused: bool = ..., out_of_rotation_seconds: _Optional[int] = ...) -> None: ...
