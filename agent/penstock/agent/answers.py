"""Answers of the admin service, checked before anything of them is used. Pure.

An agent that is broken, or whose place somebody else has taken, may answer with anything. What it costs whoever asks is
bounded here: bytes, rows, entries, texts and times. The sentences are about "it", the one that has answered.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.errors import ContractError
from penstock.agent.prescan import count_entries
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
    from google.protobuf.message import Message


class Bounds(NamedTuple):
    """What one agent's answer may have.

    Attributes:
        size: bytes.
        rows: of each list of the answer itself.
        engines: of its list of engines, which are compared each with each.
        entries: strings and submessages, at all depths; each costs some hundred bytes of memory.
        text: bytes of each string.

    """

    size: int = 8 << 20
    rows: int = 65_536
    engines: int = 512
    entries: int = 1 << 18
    text: int = 1 << 20


# An agent knows 256 engines, and tells at most 10,000 pairs.
_OF_ENGINES: Final = Bounds(rows=10_000, text=16 << 10)
# As much as an agent sends.
_OF_LOG: Final = Bounds(size=16 << 20)
# An entry of a log is part of a message of at most 1 MiB.
_ONE_EVENT: Final = Bounds(size=(1 << 20) + (64 << 10))
_BOUNDS: Final = {
    "GetStatus": Bounds(size=1 << 20, rows=1_024, entries=1 << 14),
    "ListEngines": _OF_ENGINES,
    "ListPairs": _OF_ENGINES,
    "ListPolicies": Bounds(rows=4_096),
    "Diagnose": Bounds(rows=4_096),
    "ListEvents": _OF_LOG,
    "ListRequests": _OF_LOG,
    "ListAudit": _OF_LOG,
    "WatchEvents": _ONE_EVENT,
    "GetBundle": Bounds(size=16 << 20, text=16 << 20),
    "GetStacks": Bounds(size=16 << 20, text=16 << 20),
}
# Smaller answers hold nothing that is too much: an entry has two bytes, a text no more than all.
_SCAN_ABOVE_BYTES: Final = 64 << 10
# What nanoseconds of 64 bits count, with a sign or without: the years 1678 to 2554, or 584 years. An engine's clock may be
# that wrong, and its agent says so.
_FIRST_SECOND: Final = -(1 << 63) // 10**9
_MAX_SECONDS: Final = (1 << 64) // 10**9
_NANOS: Final = 10**9
_METHODS: Final = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name
_MOMENT: Final = Timestamp.DESCRIPTOR.full_name
_TIMES: Final = frozenset({_MOMENT, Duration.DESCRIPTOR.full_name})


def bounds_of(method: str) -> Bounds:
    """Return what an agent's answer to *method* may have."""
    return _BOUNDS.get(method, Bounds())


def path_of(method: str) -> str:
    """Return the path of a method of the admin service, as gRPC calls it."""
    return f"/{_METHODS[method].containing_service.full_name}/{method}"


def read_answer(method: str, body: bytes) -> Any:
    """Return the response that *body* is, of an agent or of a relay; its times are those that nanoseconds can count.

    Raises:
        ContractError: it is no such response, or has another time; one sentence.

    """
    found = _parsed(method, body)
    _check_times(method, found)
    return found


def read_agents_answer(method: str, body: bytes) -> Any:
    """Return the response of one agent, which is bounded as :func:`bounds_of` says.

    Raises:
        ContractError: it is no such response, or has too much of something; one sentence.

    """
    bounds = bounds_of(method)
    _at_most(method, "bytes", len(body), bounds.size)
    if len(body) > _SCAN_ABOVE_BYTES:
        try:
            count_entries(body, _response(method), bounds.entries, bounds.text)
        except ContractError as error:
            # What follows is advice for engines.
            raise _unusable(method, str(error).partition(";")[0]) from error
    found = _parsed(method, body)
    for field, value in found.ListFields():
        if _is_list(field):
            limit = bounds.engines if field.name == "engines" else bounds.rows
            _at_most(method, field.name, len(value), limit)
    _check_times(method, found)
    return found


def _parsed(method: str, body: bytes) -> Any:
    response = _response(method)
    try:
        return GetMessageClass(response).FromString(body)
    except DecodeError as error:
        raise _unusable(method, f"it is no {response.full_name}") from error


def _response(method: str) -> Descriptor:
    found: MethodDescriptor = _METHODS[method]
    return found.output_type


def _at_most(method: str, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise _unusable(method, f"it has {count} {what}, at most {limit} are taken")


def _unusable(method: str, reason: str) -> ContractError:
    return ContractError(f"its answer to {method} cannot be used: {reason}")


def _check_times(method: str, answer: Message) -> None:
    wrong = _wrong_time(answer, _ways(answer.DESCRIPTOR))
    if wrong:
        raise _unusable(method, wrong)


class _Way(NamedTuple):
    """A field that is a time or has some inside.

    Attributes:
        name: of the field.
        single: it is one message, not a list.
        time: it is itself one.

    """

    name: str
    single: bool
    time: bool
    descriptor: Descriptor


def _wrong_time(message: Message, ways: Iterable[_Way]) -> str:
    """Return a sentence about the first time inside *message* that nanoseconds cannot count; empty without any."""
    for name, single, time, descriptor in ways:
        if single and not message.HasField(name):
            continue
        value = getattr(message, name)
        for each in (value,) if single else value:
            if not time:
                if wrong := _wrong_time(each, _ways(descriptor)):
                    return wrong
            elif not _can_be(each.seconds, each.nanos, moment=descriptor.full_name == _MOMENT):
                return f"its {name} of {each.seconds} s and {each.nanos} ns is no time between 1678 and 2554"
    return ""


def _can_be(seconds: int, nanos: int, *, moment: bool) -> bool:
    """Whether a moment, or a duration, is one that protobuf takes and that nanoseconds of 64 bits count."""
    if abs(seconds) > _MAX_SECONDS or abs(nanos) >= _NANOS:
        return False
    return nanos >= 0 and seconds >= _FIRST_SECOND if moment else seconds * nanos >= 0


@cache
def _ways(descriptor: Descriptor) -> tuple[_Way, ...]:
    return tuple(
        _Way(field.name, not _is_list(field), field.message_type.full_name in _TIMES, field.message_type)
        for field in descriptor.fields
        if field.message_type is not None and _leads_to_time(field.message_type, frozenset())
    )


def _leads_to_time(descriptor: Descriptor, above: frozenset[str]) -> bool:
    if descriptor.full_name in _TIMES:
        return True
    above |= {descriptor.full_name}
    inside = (field.message_type for field in descriptor.fields if field.message_type is not None)
    return any(_leads_to_time(each, above) for each in inside if each.full_name not in above)


def _is_list(field: FieldDescriptor) -> bool:
    # Before protobuf 6.31 a field has no `is_repeated`, and `label` warns from there on.
    repeated = getattr(field, "is_repeated", None)
    return bool(repeated) if repeated is not None else cast("Any", field).label == field.LABEL_REPEATED
