from google.protobuf import timestamp_pb2 as _timestamp_pb2
from penstock.proto.v1 import admin_pb2 as _admin_pb2
from penstock.proto.v1 import common_pb2 as _common_pb2
from penstock.proto.v1 import policy_pb2 as _policy_pb2
from penstock.proto.v1 import snapshot_pb2 as _snapshot_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BundledState(_message.Message):
    __slots__ = ("time", "status", "sources", "subscriptions", "rollouts", "retire_after_seconds", "stalls", "journal_error", "looks", "ended_weights")
    TIME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    RETIRE_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ERROR_FIELD_NUMBER: _ClassVar[int]
    LOOKS_FIELD_NUMBER: _ClassVar[int]
    ENDED_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    status: _admin_pb2.AgentStatus
    sources: _containers.RepeatedCompositeFieldContainer[BundledSource]
    subscriptions: _containers.RepeatedCompositeFieldContainer[BundledSubscription]
    rollouts: _containers.RepeatedCompositeFieldContainer[_admin_pb2.PolicyRollout]
    retire_after_seconds: float
    stalls: _containers.RepeatedCompositeFieldContainer[BundledStall]
    journal_error: str
    looks: _containers.RepeatedCompositeFieldContainer[BundledLook]
    ended_weights: _containers.RepeatedCompositeFieldContainer[BundledWeights]
    def __init__(self, time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., status: _Optional[_Union[_admin_pb2.AgentStatus, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[BundledSource, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[BundledSubscription, _Mapping]]] = ..., rollouts: _Optional[_Iterable[_Union[_admin_pb2.PolicyRollout, _Mapping]]] = ..., retire_after_seconds: _Optional[float] = ..., stalls: _Optional[_Iterable[_Union[BundledStall, _Mapping]]] = ..., journal_error: _Optional[str] = ..., looks: _Optional[_Iterable[_Union[BundledLook, _Mapping]]] = ..., ended_weights: _Optional[_Iterable[_Union[BundledWeights, _Mapping]]] = ...) -> None: ...

class BundledWeights(_message.Message):
    __slots__ = ("key", "peer", "peer_key", "evidence", "since_unix_nano", "until_unix_nano")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_KEY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    peer: str
    peer_key: _common_pb2.EngineKey
    evidence: str
    since_unix_nano: int
    until_unix_nano: int
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., peer: _Optional[str] = ..., peer_key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., evidence: _Optional[str] = ..., since_unix_nano: _Optional[int] = ..., until_unix_nano: _Optional[int] = ...) -> None: ...

class BundledLook(_message.Message):
    __slots__ = ("key", "seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    seconds: float
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., seconds: _Optional[float] = ...) -> None: ...

class BundledStall(_message.Message):
    __slots__ = ("key", "stall")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EngineKey
    stall: _admin_pb2.Stall
    def __init__(self, key: _Optional[_Union[_common_pb2.EngineKey, _Mapping]] = ..., stall: _Optional[_Union[_admin_pb2.Stall, _Mapping]] = ...) -> None: ...

class BundledSource(_message.Message):
    __slots__ = ("source", "snapshot", "said_goodbye", "kill_switch_unread", "accounted", "retires_after_seconds", "awaited")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SAID_GOODBYE_FIELD_NUMBER: _ClassVar[int]
    KILL_SWITCH_UNREAD_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTED_FIELD_NUMBER: _ClassVar[int]
    RETIRES_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    source: _admin_pb2.Source
    snapshot: _snapshot_pb2.Snapshot
    said_goodbye: bool
    kill_switch_unread: bool
    accounted: bool
    retires_after_seconds: float
    awaited: bool
    def __init__(self, source: _Optional[_Union[_admin_pb2.Source, _Mapping]] = ..., snapshot: _Optional[_Union[_snapshot_pb2.Snapshot, _Mapping]] = ..., said_goodbye: bool = ..., kill_switch_unread: bool = ..., accounted: bool = ..., retires_after_seconds: _Optional[float] = ..., awaited: bool = ...) -> None: ...

class BundledSubscription(_message.Message):
    __slots__ = ("subscribe", "connected", "hash_taken", "answer")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    HASH_TAKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    subscribe: _policy_pb2.Subscribe
    connected: bool
    hash_taken: str
    answer: BundledAnswer
    def __init__(self, subscribe: _Optional[_Union[_policy_pb2.Subscribe, _Mapping]] = ..., connected: bool = ..., hash_taken: _Optional[str] = ..., answer: _Optional[_Union[BundledAnswer, _Mapping]] = ...) -> None: ...

class BundledAnswer(_message.Message):
    __slots__ = ("settled", "hash", "paused", "error", "field", "refused_orders", "time", "took_seconds")
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ORDERS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TOOK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    settled: bool
    hash: str
    paused: bool
    error: str
    field: str
    refused_orders: _containers.RepeatedCompositeFieldContainer[_policy_pb2.OrderRefusal]
    time: _timestamp_pb2.Timestamp
    took_seconds: float
    def __init__(self, settled: bool = ..., hash: _Optional[str] = ..., paused: bool = ..., error: _Optional[str] = ..., field: _Optional[str] = ..., refused_orders: _Optional[_Iterable[_Union[_policy_pb2.OrderRefusal, _Mapping]]] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., took_seconds: _Optional[float] = ...) -> None: ...
