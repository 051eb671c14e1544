"""Compares two documents field by field. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Maximum characters of a value in a table; hashes are longer.
_LONGEST = 60


class Difference(NamedTuple):
    """A field that differs; None where a side lacks it."""

    field: str
    left: str | None
    right: str | None


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """Return the fields that differ, in the order of *left*, then those only in *right*."""
    before, after = dict(flat_values(left)), dict(flat_values(right))
    return [
        Difference(field, before.get(field), after.get(field))
        for field in dict.fromkeys([*before, *after])
        if before.get(field) != after.get(field)
    ]


def flat_values(document: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield all values with their paths; a list is one value."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from flat_values(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, _text(document)


def difference_rows(found: Sequence[Difference]) -> list[tuple[str, str, str]]:
    """Return the rows of a table."""
    return [(item.field, _shown(item.left), _shown(item.right)) for item in found]


def plain_rows(found: Sequence[Difference], left: str, right: str) -> list[dict[str, str | None]]:
    """Return JSON values, the sides called *left* and *right*."""
    return [{"field": item.field, left: item.left, right: item.right} for item in found]


def _shown(value: str | None) -> str:
    return text.one_line(value or text.NONE, _LONGEST)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(
            " ".join(f"{name}={_text(part)}" for name, part in item.items())
            if isinstance(item, dict)
            else _text(item)
            for item in value
        )
    return str(value)
