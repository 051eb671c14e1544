"""The wire contract, read from its descriptors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

FILES = ("admin", "bundle", "common", "events", "ingest", "policy", "samples", "snapshot")

_TYPES = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group"),
    *("message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)


def files() -> list[FileDescriptor]:
    """Return the descriptors of all files of the contract."""
    return [importlib.import_module(f"penstock.proto.v1.{name}_pb2").DESCRIPTOR for name in FILES]


def messages() -> list[Descriptor]:
    """Return all messages, nested ones included, map entries not."""
    return [
        message
        for file in files()
        for top in file.message_types_by_name.values()
        for message in _with_nested(top)
        if not message.GetOptions().map_entry
    ]


def enums() -> list[EnumDescriptor]:
    """Return all enums."""
    return [enum for file in files() for enum in file.enum_types_by_name.values()]


def contract() -> Iterator[str]:
    """Yield what a peer relies on, a line each: fields with number and type, enum values, methods."""
    for message in messages():
        for field in message.fields:
            yield f"{message.full_name}.{field.name} = {field.number} {_describe(field)}"
    for enum in enums():
        for value in enum.values:
            yield f"{enum.full_name}.{value.name} = {value.number}"
    for file in files():
        for service in file.services_by_name.values():
            for method in service.methods:
                asked = "stream " * method.client_streaming + method.input_type.name
                answer = "stream " * method.server_streaming + method.output_type.name
                yield f"{service.full_name}.{method.name}({asked}) returns ({answer})"


def _with_nested(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from _with_nested(nested)


def _describe(field: FieldDescriptor) -> str:
    if is_map(field):
        assert field.message_type is not None
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return f"map<{_describe(key)}, {_describe(value)}>"
    words = ["repeated"] if field.is_repeated else []
    oneof = field.containing_oneof
    if oneof is not None:
        # A field that is `optional` sits in a oneof of its own, named after it.
        words.append("optional" if oneof.name == f"_{field.name}" else f"oneof({oneof.name})")
    named = field.message_type or field.enum_type
    words.append(named.full_name if named is not None else _TYPES[field.type])
    return " ".join(words)


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry
