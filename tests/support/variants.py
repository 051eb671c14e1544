"""Exhaustive tables of variants: `make test` runs enough rows to see every value, `make test-long` the product."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


def product(**axes: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test with the product of *axes*, each a table of values by name.

    The rows in which every value of the longest axis meets one value of each other axis, in turn, are for every run; the
    others are ``long``. Shorter axes advance by one more at each of their ends, so that two of the same length do not move
    together.
    """
    longest = max(len(values) for values in axes.values())
    every = {
        tuple(_turn(row, len(values), axis) for axis, values in enumerate(axes.values()))
        for row in range(longest)
    }
    rows = []
    for indexes in itertools.product(*(range(len(values)) for values in axes.values())):
        chosen = [list(values.items())[index] for index, values in zip(indexes, axes.values(), strict=True)]
        rows.append(
            pytest.param(
                *(value for _, value in chosen),
                id="-".join(name for name, _ in chosen),
                marks=() if indexes in every else pytest.mark.long,
            )
        )
    return pytest.mark.parametrize(tuple(axes), rows)


def _turn(row: int, length: int, axis: int) -> int:
    """Return the index of an axis of *length* values in a row."""
    return (row + axis * (row // length)) % length
