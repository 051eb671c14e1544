"""Names and units that both roots share, and the words of enum values in metrics, spans and command output."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import EnumDescriptor


ENGINE_CORE: Final = "engine-core"
"""``Hello.process`` of the process that runs the scheduler."""

FRONT_END: Final = "api"
"""``Hello.process`` of an API server; several of one server share the name."""

NANOS: Final = 1_000_000_000
"""Nanoseconds in a second."""

NOT_ENTRIES: Final = frozenset({"snapshot", "snapshot_row"})
"""Kinds of :class:`Drop` that are about snapshots, which are not counted among the entries."""


@cache
def _prefix(descriptor: EnumDescriptor) -> str:
    return descriptor.values[0].name.removesuffix("UNSPECIFIED")


@cache
def _labels(descriptor: EnumDescriptor) -> dict[int, str]:
    return {value.number: value.name.removeprefix(_prefix(descriptor)).lower() for value in descriptor.values}


def labels(enum: Any) -> Mapping[int, str]:
    """Return the words of all values of an enum, by number."""
    return MappingProxyType(_labels(enum.DESCRIPTOR))


def label(enum: Any, number: int) -> str:
    """Return the word of a value: ``label(FailureMode, FAILURE_MODE_LATE_READ) == "late_read"``.

    The zero value is ``"unspecified"``; a number of a newer peer is ``"unknown"``.
    """
    return _labels(enum.DESCRIPTOR).get(number, "unknown")


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
    return [word for number, word in _labels(enum.DESCRIPTOR).items() if number]
