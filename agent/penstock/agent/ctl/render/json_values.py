"""Messages as JSON values, in the one shape that all commands print; ``schema.py`` publishes it. Pure.

A field's kind decides how it is printed, and whether it is left out while it is not set.
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
"""Whatever reads JSON takes numbers for doubles, which have no integer of its own beyond this one."""

_SUFFIXES = ("_unix_nano", "_nano", "_json")
# Sums that grow beyond MOST: ten days at ten gigabytes per second.
_SUMS = frozenset({"penstock.v1.EngineCounters.bytes"})
_INTEGERS = frozenset(
    {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64}
)  # fmt: skip


class FieldKind(Enum):
    """How a field is printed."""

    # In RFC 3339, with nanoseconds; left out if it is not set.
    MOMENT = auto()
    # "1.500s".
    DURATION = auto()
    # What the text says, which is JSON itself; left out if it is empty.
    DOCUMENT = auto()
    # 64 random bits, in decimal digits; left out if it is 0.
    ID = auto()
    # A large number in decimal digits.
    SUM = auto()
    # A number that stops at MOST.
    COUNT = auto()
    # The value's word; left out if it is not set.
    WORD = auto()
    # A number, or the word for what is none.
    FLOAT = auto()
    MAP = auto()
    MESSAGE = auto()
    # As it is.
    OTHER = auto()


def field_kind(field: Any) -> FieldKind:  # noqa: PLR0911  (one line a kind)
    """Return the kind of the field of that descriptor."""
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
    """Return the name of the field of that descriptor: camelCase, without the unit that its value has no longer."""
    name: str = field.json_name
    for suffix in ("UnixNano", "Nano", "Json"):
        name = name.removesuffix(suffix)
    return name


def may_be_absent(field: Any) -> bool:
    """Tell whether the field of that descriptor is left out while it is not set."""
    return bool(field.has_presence) or field_kind(field) in {
        FieldKind.MOMENT,
        FieldKind.DOCUMENT,
        FieldKind.ID,
        FieldKind.WORD,
    }


def as_json_values(message: Message) -> dict[str, Any]:
    """Return *message* as JSON values, without its secrets."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_BYTES:
            continue  # A secret: the agent sends none, and none is shown.
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
    """Return nanoseconds since the epoch in RFC 3339; all moments sort as their texts do."""
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
        return label(_Enum(field.enum_type), value)
    if kind is FieldKind.MESSAGE:
        return as_json_values(value)
    if kind is FieldKind.FLOAT and not math.isfinite(value):
        # As protobuf's own JSON has them: JSON has no such numbers.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _duration(nano: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(nano)
    return message


class _Enum:
    """What :func:`label` needs of an enum."""

    def __init__(self, descriptor: Any) -> None:
        self.DESCRIPTOR = descriptor
