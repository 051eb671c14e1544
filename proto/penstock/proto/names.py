"""The words that enum values go by in metrics, spans and command output."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor


@cache
def _prefix(descriptor: EnumDescriptor) -> str:
    return descriptor.values[0].name.removesuffix("UNSPECIFIED")


@cache
def _label(descriptor: EnumDescriptor, number: int) -> str:
    value = descriptor.values_by_number.get(number)
    if value is None:
        return "unknown"
    return value.name.removeprefix(_prefix(descriptor)).lower()


def label(enum: Any, number: int) -> str:
    """Return the word of a value: ``label(FailureMode, FAILURE_MODE_LATE_READ) == "late_read"``.

    The zero value is ``"unspecified"``; a number of a newer peer is ``"unknown"``.
    """
    return _label(enum.DESCRIPTOR, number)


def number(enum: Any, word: str) -> int:
    """Return the value that goes by *word*; the inverse of :func:`label`.

    Raises:
        ValueError: no value goes by that word; the text lists those that do.

    """
    descriptor = enum.DESCRIPTOR
    value = descriptor.values_by_name.get(_prefix(descriptor) + word.upper())
    if value is None or word != word.lower():
        raise ValueError(f"{word!r} is not one of {', '.join(words(enum))}")
    return int(value.number)


def words(enum: Any) -> list[str]:
    """Return all words of an enum, without that of the zero value."""
    return [_label(enum.DESCRIPTOR, value.number) for value in enum.DESCRIPTOR.values[1:]]
