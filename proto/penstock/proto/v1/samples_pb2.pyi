from penstock.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransferSamples(_message.Message):
    __slots__ = ("end_time_unix_nano", "duration_nano", "bytes", "descriptors", "post_duration_nano", "end_uncertainty_nano", "channel", "direction", "result", "component", "rank", "connector", "peer", "peer_engine_id", "request_id")
    END_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    DURATION_NANO_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    POST_DURATION_NANO_FIELD_NUMBER: _ClassVar[int]
    END_UNCERTAINTY_NANO_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    end_time_unix_nano: _containers.RepeatedScalarFieldContainer[int]
    duration_nano: _containers.RepeatedScalarFieldContainer[int]
    bytes: _containers.RepeatedScalarFieldContainer[int]
    descriptors: _containers.RepeatedScalarFieldContainer[int]
    post_duration_nano: _containers.RepeatedScalarFieldContainer[int]
    end_uncertainty_nano: _containers.RepeatedScalarFieldContainer[int]
    channel: _containers.RepeatedScalarFieldContainer[_common_pb2.Channel]
    direction: _containers.RepeatedScalarFieldContainer[_common_pb2.Direction]
    result: _containers.RepeatedScalarFieldContainer[_common_pb2.TransferResult]
    component: _containers.RepeatedScalarFieldContainer[_common_pb2.Component]
    rank: _containers.RepeatedScalarFieldContainer[int]
    connector: _containers.RepeatedScalarFieldContainer[int]
    peer: _containers.RepeatedScalarFieldContainer[int]
    peer_engine_id: _containers.RepeatedScalarFieldContainer[int]
    request_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, end_time_unix_nano: _Optional[_Iterable[int]] = ..., duration_nano: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Iterable[int]] = ..., descriptors: _Optional[_Iterable[int]] = ..., post_duration_nano: _Optional[_Iterable[int]] = ..., end_uncertainty_nano: _Optional[_Iterable[int]] = ..., channel: _Optional[_Iterable[_Union[_common_pb2.Channel, str]]] = ..., direction: _Optional[_Iterable[_Union[_common_pb2.Direction, str]]] = ..., result: _Optional[_Iterable[_Union[_common_pb2.TransferResult, str]]] = ..., component: _Optional[_Iterable[_Union[_common_pb2.Component, str]]] = ..., rank: _Optional[_Iterable[int]] = ..., connector: _Optional[_Iterable[int]] = ..., peer: _Optional[_Iterable[int]] = ..., peer_engine_id: _Optional[_Iterable[int]] = ..., request_id: _Optional[_Iterable[int]] = ...) -> None: ...

class ProbeSamples(_message.Message):
    __slots__ = ("end_time_unix_nano", "duration_nano", "result", "connector", "peer", "request_id")
    END_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    DURATION_NANO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    end_time_unix_nano: _containers.RepeatedScalarFieldContainer[int]
    duration_nano: _containers.RepeatedScalarFieldContainer[int]
    result: _containers.RepeatedScalarFieldContainer[_common_pb2.ProbeResult]
    connector: _containers.RepeatedScalarFieldContainer[int]
    peer: _containers.RepeatedScalarFieldContainer[int]
    request_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, end_time_unix_nano: _Optional[_Iterable[int]] = ..., duration_nano: _Optional[_Iterable[int]] = ..., result: _Optional[_Iterable[_Union[_common_pb2.ProbeResult, str]]] = ..., connector: _Optional[_Iterable[int]] = ..., peer: _Optional[_Iterable[int]] = ..., request_id: _Optional[_Iterable[int]] = ...) -> None: ...
