"""Paths of a message's fields, as in a policy's manifest: those that are set, those that this engine's contract lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from google.protobuf.unknown_fields import UnknownFieldSet
from penstock.proto.v1.policy_pb2 import Push

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message


def has_unknown(push: Push) -> bool:
    """Return whether any field, at any depth, is unknown."""
    known = Push()
    known.CopyFrom(push)
    known.DiscardUnknownFields()
    return known.ByteSize() != push.ByteSize()


def unknown_in_policy(push: Push) -> Iterator[str]:
    """Yield the unknown fields outside the orders, each of which is decoded alone (decode_push.py)."""
    yield from _own_unknown(push, "")
    for entry in push.schedule:
        yield from unknown_fields(entry)


def unknown_fields(message: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field, at any depth of *message*, that our version of the contract lacks."""
    yield from _own_unknown(message, path)
    for descriptor, value in message.ListFields():
        # Nothing depends on the names of policies: a newer agent may say more about them.
        if descriptor.message_type is None or descriptor.name == "policies":
            continue
        # The body's fields are the spec's; the wrapping around it has no place in the manifest.
        wrapping = descriptor.name in ("body", "observed")
        inner = path if wrapping else join(path, descriptor.json_name)
        for item in value if _is_repeated(descriptor) else (value,):
            yield from unknown_fields(item, inner)


def _own_unknown(message: Any, path: str) -> Iterator[str]:
    # The stubs lack __iter__.
    for field in cast("Iterable[Any]", UnknownFieldSet(message)):
        yield join(path, str(field.field_number))


def _is_repeated(descriptor: Any) -> bool:
    # `is_repeated` came with protobuf 6.31, and `label` warns from there on.
    repeated = getattr(descriptor, "is_repeated", None)
    return bool(repeated) if repeated is not None else descriptor.label == descriptor.LABEL_REPEATED


def leaves(message: Message, name: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield dotted name and manifest path of every field set in *message* that is no section of fields."""
    for descriptor, value in message.ListFields():
        inner_name, inner_path = join(name, descriptor.name), join(path, descriptor.json_name)
        kind = descriptor.message_type
        if kind is None or kind.full_name == "google.protobuf.Duration" or not value.ListFields():
            yield inner_name, inner_path
        else:
            yield from leaves(value, inner_name, inner_path)


def join(path: str, name: str) -> str:
    """Return the path of the field *name* of what *path* leads to."""
    return f"{path}.{name}" if path else name
