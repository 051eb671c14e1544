"""What single fields of an answer say: times that a clock can show, numbers that are some, texts that are documents. Pure."""

from __future__ import annotations

import math
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.answers.manifests import wrong_document
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

# What nanoseconds of 64 bits count, with a sign or without: the years 1678 to 2554, or 584 years. An engine's clock may be
# that wrong, and its agent says so.
_FIRST_SECOND: Final = -(1 << 63) // 10**9
_MAX_SECONDS: Final = (1 << 64) // 10**9
_NANOS: Final = 10**9
_MOMENT: Final = Timestamp.DESCRIPTOR.full_name
_LENGTH: Final = Duration.DESCRIPTOR.full_name
_JSON: Final = "_json"
_MANIFEST_JSON: Final = "penstock.v1.Policy.manifest_json"
# These are never empty; of others an empty text stands for nothing.
_NEEDED: Final = frozenset({_MANIFEST_JSON, "penstock.v1.ExportPoliciesResponse.manifests_json"})


class _Check(Enum):
    INSIDE = auto()
    MOMENT = auto()
    LENGTH = auto()
    NUMBER = auto()
    DOCUMENT = auto()
    MANIFEST = auto()


class _Way(NamedTuple):
    """A field that is checked, or has such fields inside.

    Attributes:
        name: of the field.
        single: it is one value, not a list.
        presence: it may be absent.
        needed: a text that must not be empty.

    """

    name: str
    single: bool
    presence: bool
    kind: _Check
    descriptor: Descriptor | None
    needed: bool


def is_list(field: FieldDescriptor) -> bool:
    """Return whether a field is repeated."""
    # Before protobuf 6.31 a field has no `is_repeated`, and `label` warns from there on.
    repeated = getattr(field, "is_repeated", None)
    return bool(repeated) if repeated is not None else cast("Any", field).label == field.LABEL_REPEATED


def wrong_content(message: Message) -> str:
    """Return a sentence about the first field inside *message* that cannot be; empty without any."""
    return _wrong_inside(message, ways_of(message.DESCRIPTOR))


def _wrong_inside(message: Message, ways: Iterable[_Way]) -> str:
    for way in ways:
        if way.presence and not message.HasField(way.name):
            continue
        value = getattr(message, way.name)
        for each in (value,) if way.single else value:
            if wrong := _wrong_value(way, each):
                return wrong
    return ""


def _wrong_value(way: _Way, value: Any) -> str:
    match way.kind:
        case _Check.INSIDE:
            return _wrong_inside(value, ways_of(cast("Descriptor", way.descriptor)))
        case _Check.NUMBER:
            return "" if math.isfinite(value) else f"its {way.name} is {value}"
        case _Check.DOCUMENT | _Check.MANIFEST:
            manifest = way.kind is _Check.MANIFEST
            wrong = wrong_document(value, manifest=manifest) if value or way.needed else ""
            return wrong and f"its {way.name} {wrong}"
    if _can_be(value.seconds, value.nanos, moment=way.kind is _Check.MOMENT):
        return ""
    return f"its {way.name} of {value.seconds} s and {value.nanos} ns is no time between 1678 and 2554"


def _can_be(seconds: int, nanos: int, *, moment: bool) -> bool:
    """Whether a moment, or a duration, is one that protobuf takes and that nanoseconds of 64 bits count."""
    if abs(seconds) > _MAX_SECONDS or abs(nanos) >= _NANOS:
        return False
    return nanos >= 0 and seconds >= _FIRST_SECOND if moment else seconds * nanos >= 0


@cache
def ways_of(descriptor: Descriptor) -> tuple[_Way, ...]:
    """Return the fields of a message that are checked, and those that lead to some."""
    return tuple(
        _Way(
            field.name,
            not is_list(field),
            bool(field.has_presence) and not is_list(field),
            kind,
            field.message_type,
            field.full_name in _NEEDED,
        )
        for field in descriptor.fields
        if (kind := _kind(field, frozenset())) is not None
    )


def _kind(field: FieldDescriptor, above: frozenset[str]) -> _Check | None:
    """Return what a field is checked as; None for not at all. *above* are the messages that it was found inside of."""
    if (inner := field.message_type) is not None:
        times = {_MOMENT: _Check.MOMENT, _LENGTH: _Check.LENGTH}
        if inner.full_name in times:
            return times[inner.full_name]
        return _Check.INSIDE if inner.full_name not in above and _leads(inner, above) else None
    # What engines measure may be anything: it is shown as it came.
    if field.type == field.TYPE_DOUBLE and cast("Any", field).file.name != events.DESCRIPTOR.name:
        return _Check.NUMBER
    if field.type == field.TYPE_STRING and field.name.endswith(_JSON):
        return _Check.MANIFEST if field.full_name == _MANIFEST_JSON else _Check.DOCUMENT
    return None


def _leads(descriptor: Descriptor, above: frozenset[str]) -> bool:
    above |= {descriptor.full_name}
    return any(_kind(field, above) is not None for field in descriptor.fields)
