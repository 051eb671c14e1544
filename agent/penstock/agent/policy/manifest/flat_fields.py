"""The fields that a policy sets, as a flat map from dotted path to scalar, and back."""

from __future__ import annotations

from typing import Any

# By path below ``spec``; a duration is its canonical text.
Leaf = str | int | float
Leaves = dict[str, Leaf]


def flatten(document: dict[str, Any], prefix: str = "") -> Leaves:
    """Return the scalars of nested objects by their dotted path."""
    leaves: Leaves = {}
    for name, value in document.items():
        if isinstance(value, dict):
            leaves |= flatten(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def unflatten(leaves: Leaves) -> dict[str, Any]:
    """Return nested objects, ordered by name; the inverse of :func:`flatten`."""
    document: dict[str, Any] = {}
    for path, value in sorted(leaves.items()):
        *parents, last = path.split(".")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return document
