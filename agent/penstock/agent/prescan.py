"""Counts the entries of a message before it is parsed.

Parsing allocates a few hundred bytes for each submessage, and two bytes on the wire are enough for one: 4 MiB of
``0a 00`` take 545 MiB. So a large body is walked first, without allocating, along the message's descriptor.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.agent.errors import ContractError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CONTINUES = 0x80
_MAX_VARINT_BITS = 63
_ANY_LENGTH = 1 << 63


@cache
def _entries(descriptor: Descriptor) -> dict[int, Descriptor | None]:
    """Return the fields that allocate: strings (None) and submessages (their descriptor), by number."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None or field.type in {field.TYPE_STRING, field.TYPE_BYTES}
    }


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            return value, at
        shift += 7
        if shift > _MAX_VARINT_BITS:
            break
    raise ContractError("the message is not protobuf: a number does not end")


def _behind_scalar(kind: int, body: bytes, at: int, end: int) -> int:
    if kind == _VARINT:
        return _varint(body, at, end)[1]
    if kind in {_FIXED64, _FIXED32}:
        return at + (8 if kind == _FIXED64 else 4)
    raise ContractError(f"the message is not protobuf: wire type {kind} is not used")


def count_entries(body: bytes, descriptor: Descriptor, limit: int, longest: int = _ANY_LENGTH) -> int:
    """Return how many strings and submessages *body* holds, at all depths.

    The time is bounded too: scalar fields count a tenth, and repeated scalars that are packed count nothing.

    Raises:
        ContractError: more than *limit*, a string of more than *longest* bytes, or bytes that are no message.

    """
    budget = limit * 10
    stack = [(0, len(body), _entries(descriptor))]
    count = 0
    while stack:
        at, end, entries = stack.pop()
        while at < end:
            tag, at = _varint(body, at, end)
            budget -= 1
            kind, number = tag & 7, tag >> 3
            if kind == _BYTES:
                length, at = _varint(body, at, end)
                if number in entries:
                    count += 1
                    child = entries[number]
                    if child is not None and length:
                        stack.append((at, min(at + length, end), _entries(child)))
                    elif length > longest:
                        raise ContractError(
                            f"the message has a text of {length} bytes, at most {longest} are taken"
                        )
                at += length
            else:
                at = _behind_scalar(kind, body, at, end)
            if count > limit or budget < 0:
                raise ContractError(f"the message holds more than {limit} entries; send smaller batches")
        if at > end:
            raise ContractError("the message is not protobuf: a field is longer than what holds it")
    return count
