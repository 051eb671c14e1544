"""``python -m tests.support.agent.round_trip``: every message of the contract, filled, through its bytes and back.

Runs on whatever protobuf it finds and prints its version and the number of messages. It uses only what
protobuf 5 has already.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import google.protobuf
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

FILES = ("admin", "bundle", "common", "events", "ingest", "policy", "samples", "snapshot")
_NUMBERS: dict[int, Any] = {
    FieldDescriptor.CPPTYPE_INT32: 7,
    FieldDescriptor.CPPTYPE_INT64: 1 << 40,
    FieldDescriptor.CPPTYPE_UINT32: 1 << 31,
    FieldDescriptor.CPPTYPE_UINT64: (1 << 63) + 1,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_STRING: "wörd",
}


def value_of(field: Any) -> Any:
    """Return a value that is not the default."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return field.enum_type.values[-1].number
    value = _NUMBERS[field.cpp_type]
    return value.encode() if field.type == field.TYPE_BYTES else value


def fill(message: Message, depth: int = 3) -> None:
    """Set every field; in a oneof the last one stays. Nested messages are filled to *depth*."""
    for field in message.DESCRIPTOR.fields:
        target = getattr(message, field.name)
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            target[value_of(nested.fields_by_name["key"])] = value_of(nested.fields_by_name["value"])
        elif nested is not None and hasattr(target, "add"):
            if depth:
                fill(target.add(), depth - 1)
        elif nested is not None:
            target.SetInParent()
            if depth:
                fill(target, depth - 1)
        elif hasattr(target, "append"):
            target.extend([value_of(field)] * 2)
        else:
            setattr(message, field.name, value_of(field))


def round_trip(kind: type[Message]) -> None:
    """Check one message."""
    message = kind()
    fill(message)
    copy = kind.FromString(message.SerializeToString())
    if copy != message or (kind.DESCRIPTOR.fields and not message.ByteSize()):
        raise SystemExit(f"{kind.DESCRIPTOR.full_name} changed on its way through bytes")


def main() -> None:
    """Check all messages."""
    kinds = [
        kind
        for name in FILES
        for _, kind in inspect.getmembers(importlib.import_module(f"penstock.proto.v1.{name}_pb2"))
        if inspect.isclass(kind) and issubclass(kind, Message)
    ]
    for kind in kinds:
        round_trip(kind)
    print(google.protobuf.__version__, len(kinds))  # noqa: T201  (its answer)


if __name__ == "__main__":
    main()
