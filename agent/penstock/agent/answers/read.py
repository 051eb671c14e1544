"""Reads answers of the admin service within bounds. Pure.

An agent that is broken, or whose place somebody else has taken, may answer with anything. What it costs whoever asks is
bounded here: bytes, rows, entries and texts. The sentences are about "it", the one that has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from penstock.agent.answers.contents import is_list, wrong_content
from penstock.agent.errors import ContractError
from penstock.agent.prescan import count_entries
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, MethodDescriptor


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
    # 180 slots of 77 buckets.
    "GetSignals": Bounds(size=1 << 20, rows=256, entries=1 << 15),
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
# Of what a relay merges of thousands of agents, in at most 16 MiB.
_OF_FLEET: Final = Bounds(size=64 << 20, engines=65_536, entries=1 << 20, text=16 << 20)
_OF_FLEET_BY_METHOD: Final = {"Diagnose": _OF_FLEET._replace(rows=16_384)}
_METHODS: Final = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name


def bounds_of(method: str) -> Bounds:
    """Return what an agent's answer to *method* may have."""
    return _BOUNDS.get(method, Bounds())


def fleet_bounds_of(method: str) -> Bounds:
    """Return what an answer to *method* may have that is a relay's, for all that is known."""
    return _OF_FLEET_BY_METHOD.get(method, _OF_FLEET)


def path_of(method: str) -> str:
    """Return the path of a method of the admin service, as gRPC calls it."""
    return f"/{_METHODS[method].containing_service.full_name}/{method}"


def read_answer(method: str, body: bytes) -> Any:
    """Return the response that *body* is, of an agent or of a relay, bounded as :func:`fleet_bounds_of` says.

    Its times are those that nanoseconds can count, its numbers are finite, its documents JSON, its manifests manifests.

    Raises:
        ContractError: it is no such response, or has too much of something; one sentence.

    """
    return _checked(method, body, fleet_bounds_of(method))


def read_agents_answer(method: str, body: bytes) -> Any:
    """Return the response of one agent, which is bounded as :func:`bounds_of` says.

    Raises:
        ContractError: it is no such response, or has too much of something; one sentence.

    """
    return _checked(method, body, bounds_of(method))


def _checked(method: str, body: bytes, bounds: Bounds) -> Any:
    response = _response(method)
    _at_most(method, "bytes", len(body), bounds.size)
    if len(body) > _SCAN_ABOVE_BYTES:
        try:
            count_entries(body, response, bounds.entries, bounds.text)
        except ContractError as error:
            # What follows is advice for engines.
            raise _unusable(method, str(error).partition(";")[0]) from error
    try:
        found = GetMessageClass(response).FromString(body)
    except DecodeError as error:
        raise _unusable(method, f"it is no {response.full_name}") from error
    for field, value in found.ListFields():
        if is_list(field):
            limit = bounds.engines if field.name == "engines" else bounds.rows
            _at_most(method, field.name, len(value), limit)
    if wrong := wrong_content(found):
        raise _unusable(method, wrong)
    return found


def _response(method: str) -> Descriptor:
    found: MethodDescriptor = _METHODS[method]
    return found.output_type


def _at_most(method: str, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise _unusable(method, f"it has {count} {what}, at most {limit} are taken")


def _unusable(method: str, reason: str) -> ContractError:
    return ContractError(f"its answer to {method} cannot be used: {reason}")
