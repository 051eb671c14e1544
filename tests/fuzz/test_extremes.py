"""Messages whose every number is at an end of its range: what a fuzzer finds late, and a broken engine at once."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from penstock.agent.ingest.message_limits import AGENT_KINDS
from penstock.proto.v1.common_pb2 import EngineKey
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch, Hello
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.fuzz import relay_target
from tests.fuzz.target import EPOCH, Target
from tests.support.fleet.hostile_agent import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

KINDS = [each.name for each in Event.DESCRIPTOR.oneofs_by_name["body"].fields if each.name not in AGENT_KINDS]
_BITS = {"INT32": 31, "INT64": 63, "UINT32": 32, "UINT64": 64}
EXTREMES = {
    "most": (lambda bits, signed: (1 << bits) - 1, math.inf, "\U0010ffff" * 40),
    "least": (lambda bits, signed: -(1 << bits) if signed else 1, -math.inf, "\x00\x1b[31m\u2028"),
    "nan": (lambda bits, signed: (1 << bits - 1) + 1, math.nan, "10.0.0.7:99999999999999999999"),
    "huge": (lambda bits, signed: (1 << bits) - 2, 1.7e308, ":" * 300),
}


def filled(descriptor: Any, extreme: str, depth: int = 0) -> dict[str, Any]:
    """Return a value for every field of a message, nested ones included; of repeated ones three."""
    return {each.name: _value(each, extreme, depth) for each in descriptor.fields if depth < 5}


def _value(field: FieldDescriptor, extreme: str, depth: int) -> object:
    whole, real, text = EXTREMES[extreme]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {text: text}
    if field.message_type is not None:
        single: object = filled(field.message_type, extreme, depth + 1)
    elif field.enum_type is not None:
        single = 1 if extreme == "least" else (1 << 31) - 1 if extreme == "most" else 2
    elif field.cpp_type == field.CPPTYPE_STRING:
        single = text if field.type == field.TYPE_STRING else text.encode()
    elif field.cpp_type == field.CPPTYPE_BOOL:
        single = True
    elif field.cpp_type in {field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT}:
        single = real
    else:
        kind = next(name for name in _BITS if getattr(field, f"CPPTYPE_{name}") == field.cpp_type)
        single = whole(_BITS[kind], not kind.startswith("U"))
    return [single] * 3 if field.is_repeated else single


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """Build what is behind the door once."""
    built = Target()
    yield built
    built.close()


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("kind", KINDS)
def test_events(target, kind, extreme):
    """Counted, traced, exported, asked for and shown, whatever its numbers are."""
    body: dict[str, Any] = {kind: filled(Event.DESCRIPTOR.fields_by_name[kind].message_type, extreme)}
    whole = EXTREMES[extreme][0]
    event = Event(**body, request_id="r-aaaaaaaa", time_unix_nano=whole(64, False), rank=whole(31, False))
    closing = Event(request_id="r-aaaaaaaa", request_closed={}, time_unix_nano=1)
    empty: dict[str, Any] = {kind: {}}
    plain = Event(**empty, request_id="r-aaaaaaaa", time_unix_nano=5)
    for events in ([event], [event, event, closing], [plain, event, closing]):
        assert target.take(Batch(epoch=EPOCH, seq=1, events=events).SerializeToString())


@pytest.mark.parametrize("extreme", EXTREMES)
def test_samples_and_losses(target, extreme):
    """Columns of extremes, and counts that add up to more than any field holds."""
    batch = Batch(epoch=EPOCH, seq=1, strings=["", EXTREMES[extreme][2]])
    for name in ("transfers", "probes"):
        columns = getattr(batch, name)
        for field in columns.DESCRIPTOR.fields:
            value = _value(field, extreme, 0)
            indices = {"connector", "peer", "peer_engine_id", "request_id"}
            getattr(columns, field.name).extend([1] * 3 if field.name in indices else value)
    for lost in (batch.drops, batch.guard_errors, batch.tombstone.lost):
        for _ in range(3):
            lost.add(**filled(lost.add().DESCRIPTOR, extreme))
    assert target.take(batch.SerializeToString())


@pytest.mark.parametrize("extreme", EXTREMES)
def test_snapshots_and_hellos(target, extreme):
    """What is shown of an engine as it is now."""
    snapshot = Snapshot(**filled(Snapshot.DESCRIPTOR, extreme))
    assert target.take(Batch(epoch=EPOCH, snapshot=snapshot).SerializeToString())
    hello = Hello(**{**filled(Hello.DESCRIPTOR, extreme), "schema_version": 1, "secret": b"s" * 64})
    assert target.take(Batch(epoch=EPOCH, hello=hello).SerializeToString())
    hello.key.CopyFrom(EngineKey(engine="0"))
    assert target.take(Batch(epoch=EPOCH, hello=hello, snapshot=snapshot).SerializeToString())


def _as_agents_may(message: Message, extreme: str) -> None:
    """Make the times, the numbers and the JSON of *message* what a relay takes; all else stays extreme."""
    for field, value in message.ListFields():
        if field.message_type is None:
            if field.type == field.TYPE_DOUBLE and not field.is_repeated and not math.isfinite(value):
                setattr(message, field.name, math.copysign(sys.float_info.max, value))
            elif field.name.endswith("_json"):
                text = json.dumps({"metadata": {"name": extreme}, "spec": {}})
                setattr(message, field.name, [text] * 3 if field.is_repeated else text)
        elif not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else (value,):
                if field.message_type.full_name.startswith("google.protobuf."):
                    each.seconds, each.nanos = (0, 0) if extreme == "least" else (9_000_000_000, 999_999_999)
                else:
                    _as_agents_may(each, extreme)


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("method", relay_target.METHODS)
def test_agents_answers(method, extreme):
    """A relay merges two of them into one that it can send, and that can be shown."""
    response: Any = METHODS[method].output_type
    answer = GetMessageClass(response)(**filled(response, extreme))
    _as_agents_may(answer, extreme)
    body = bytes([relay_target.METHODS.index(method)]) + answer.SerializeToString()
    assert relay_target.take(body)
