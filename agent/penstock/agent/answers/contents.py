"""What single fields of an answer say: times that a clock can show, numbers that are some, documents of JSON and their shape. Pure.

An agent of another version may have fields that this one does not know: they are let through, as no one reads them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

    Fits = Callable[[Any, str], str]

MAX_DEPTH: Final = 32
"""Levels of a document, as many as of a file of policies."""


@dataclass(frozen=True, slots=True)
class _Object:
    """An object of JSON.

    Attributes:
        fields: what those that are read must be.
        needed: those that must be there.
        others: what all other fields must be; None for anything.

    """

    fields: Mapping[str, Fits]
    needed: frozenset[str] = frozenset()
    others: Fits | None = None

    def __call__(self, value: Any, place: str) -> str:
        """Return the place of the first field that is something else; empty if all fit."""
        if not isinstance(value, dict) or not self.needed <= value.keys():
            return place
        for name, each in value.items():
            fits = self.fields.get(name, self.others)
            if fits is not None and (wrong := fits(each, f"{place}.{name}")):
                return wrong
        return ""


def _a(kind: type, value: Any, place: str) -> str:
    return "" if type(value) is kind else place


def _a_list_of(fits: Fits, value: Any, place: str) -> str:
    if not isinstance(value, list):
        return place
    return next((wrong for each in value if (wrong := fits(each, place))), "")


def _a_time(value: Any, place: str) -> str:
    try:
        datetime.fromisoformat(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return place
    return ""


_TEXT, _NUMBER = partial(_a, str), partial(_a, int)
_TEXTS: Final = partial(_a_list_of, _TEXT)
_MAP: Final = _Object({}, others=_TEXT)
_EXPRESSION: Final = _Object(
    {"key": _TEXT, "operator": _TEXT, "values": _TEXTS}, frozenset({"key", "operator"})
)
_SELECTOR: Final = _Object(
    {"matchLabels": _MAP, "matchExpressions": partial(_a_list_of, _EXPRESSION), "models": _TEXTS}
)
_SPEC: Final = _Object(
    {
        "selector": _SELECTOR,
        "rollout": _Object({"percent": _NUMBER}, frozenset({"percent"})),
        "priority": _NUMBER,
        "expiresAt": _a_time,
        "mode": _TEXT,
    }
)
_METADATA: Final = _Object({"name": _TEXT, "annotations": _MAP})
_MANIFEST: Final = _Object({"metadata": _METADATA, "spec": _SPEC}, frozenset({"metadata", "spec"}))


def wrong_document(text: str, *, manifest: bool) -> str:
    """Return why *text* is no object of JSON, or no *manifest*; empty if it is one.

    What has a part of a manifest is one in any case: the audit log has orders besides.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(found, dict):
        return "is no object"
    if wrong := _wrong_json(found):
        return wrong
    place = _MANIFEST(found, "manifest") if manifest or not _MANIFEST.needed.isdisjoint(found) else ""
    return place and f"is no manifest: {place} is not what one has there"


def _wrong_json(found: Any) -> str:
    """Return what the first value has that UTF-8, JSON or a person's patience does not."""
    level = [found]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, str):
                # Half of a character is what marks a style in the output.
                if not each.isascii() and any("\ud800" <= character <= "\udfff" for character in each):
                    return "has half of a character"
            elif isinstance(each, float) and not math.isfinite(each):
                return "has a number that is none"
        if not below:
            return ""
        level = below
    return f"is more than {MAX_DEPTH} levels deep"


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
