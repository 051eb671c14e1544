"""Messages as JSON values, in the shape that all commands print and ``ctl/json_schema.py`` publishes. Pure.

A field's kind decides how it is printed, and whether an unset field is omitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.proto.names import label

if TYPE_CHECKING:
    from google.protobuf.message import Message

MOST = 2**53 - 1
"""The largest integer that JSON readers keep exact: they use doubles."""

_SUFFIXES = ("_unix_nano", "_nano", "_json")
# Sums that grow beyond MOST: ten days at ten gigabytes per second.
_SUMS = frozenset({"penstock.v1.EngineCounters.bytes"})
_INTEGERS = frozenset(
    {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64}
)  # fmt: skip


class FieldKind(Enum):
    """The printed form of a field."""

    # In RFC 3339, with nanoseconds; omitted if unset.
    MOMENT = auto()
    # "1.500s".
    DURATION = auto()
    # JSON in a text field, embedded; omitted if empty.
    DOCUMENT = auto()
    # 64 random bits, in decimal digits; omitted if 0.
    ID = auto()
    # A large number in decimal digits.
    SUM = auto()
    # A number, clamped to MOST.
    COUNT = auto()
    # The label of the value; omitted if unset.
    WORD = auto()
    # A number, or NaN, Infinity, -Infinity as text.
    FLOAT = auto()
    MAP = auto()
    MESSAGE = auto()
    # As it is.
    OTHER = auto()


def field_kind(field: Any) -> FieldKind:  # noqa: PLR0911  (one line a kind)
    """Return the kind of a field, by its descriptor."""
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return FieldKind.MAP
        known = {
            Timestamp.DESCRIPTOR.full_name: FieldKind.MOMENT,
            Duration.DESCRIPTOR.full_name: FieldKind.DURATION,
        }
        return known.get(field.message_type.full_name, FieldKind.MESSAGE)
    if field.enum_type is not None:
        return FieldKind.WORD
    for suffix, kind in zip(
        _SUFFIXES, (FieldKind.MOMENT, FieldKind.DURATION, FieldKind.DOCUMENT), strict=True
    ):
        if field.name.endswith(suffix):
            return kind
    if field.type == FieldDescriptor.TYPE_FIXED64:
        return FieldKind.ID
    if field.type in _INTEGERS:
        return FieldKind.SUM if field.full_name in _SUMS else FieldKind.COUNT
    return FieldKind.FLOAT if field.type == FieldDescriptor.TYPE_DOUBLE else FieldKind.OTHER


def field_name(field: Any) -> str:
    """Return a field's JSON name: camelCase, without a unit suffix."""
    name: str = field.json_name
    for suffix in ("UnixNano", "Nano", "Json"):
        name = name.removesuffix(suffix)
    return name


def may_be_absent(field: Any) -> bool:
    """Return whether a field is omitted if unset."""
    return bool(field.has_presence) or field_kind(field) in {
        FieldKind.MOMENT,
        FieldKind.DOCUMENT,
        FieldKind.ID,
        FieldKind.WORD,
    }


def as_json_values(message: Message) -> dict[str, Any]:
    """Return *message* as JSON values, without ``bytes`` fields, which are secrets."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_BYTES:
            continue
        if field.has_presence and not message.HasField(field.name):
            continue
        value, kind = getattr(message, field.name), field_kind(field)
        if kind is FieldKind.MAP:
            document[field_name(field)] = dict(sorted(value.items()))
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            document[field_name(field)] = [_value(field, kind, item) for item in value]
        elif value or not may_be_absent(field) or field.has_presence:
            document[field_name(field)] = _value(field, kind, value)
    return document


def moment(unix_nano: int) -> str:
    """Return nanoseconds since the epoch in RFC 3339; texts sort by time."""
    seconds, nanos = divmod(unix_nano, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def _value(field: Any, kind: FieldKind, value: Any) -> Any:  # noqa: PLR0911  (one line a kind)
    if kind is FieldKind.MOMENT:
        return moment(value.ToNanoseconds() if isinstance(value, Timestamp) else value)
    if kind is FieldKind.DURATION:
        return (value if isinstance(value, Duration) else _duration(value)).ToJsonString()
    if kind is FieldKind.DOCUMENT:
        return json.loads(value)
    if kind in {FieldKind.ID, FieldKind.SUM}:
        return str(value)
    if kind is FieldKind.COUNT:
        return min(max(value, -MOST), MOST)
    if kind is FieldKind.WORD:
        # 0 is only met in a list; elsewhere it is left out.
        return label(_Enum(field.enum_type), value) if value else "unknown"
    if kind is FieldKind.MESSAGE:
        return as_json_values(value)
    if kind is FieldKind.FLOAT and not math.isfinite(value):
        # As in protobuf's JSON mapping.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _duration(nano: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(nano)
    return message


class _Enum:
    """Adapts an enum descriptor to :func:`label`."""

    def __init__(self, descriptor: Any) -> None:
        self.DESCRIPTOR = descriptor
