"""Tables as ``kubectl`` aligns them: headers and rows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click
from penstock.agent.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_GAP = "   "


class Table(NamedTuple):
    """Headers and rows; the last *wide* columns are for ``-o wide`` only."""

    headers: tuple[str, ...]
    rows: list[tuple[str, ...]]
    wide: int = 0

    def narrow(self) -> Table:
        """Return the table without the wide columns."""
        if not self.wide:
            return self
        return Table(self.headers[: -self.wide], [row[: -self.wide] for row in self.rows])


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns as kubectl does; colours have no width."""
    lines = [tuple(map(printable, line)) for line in (headers, *rows)]
    widths = [max(cell_width(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(aligned(line, widths) for line in lines)


def cell_width(cell: str) -> int:
    """Return how many characters wide a printable cell is."""
    return len(click.unstyle(cell))


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of printable cells in columns of *widths*."""
    return _GAP.join(
        cell + " " * (width - cell_width(cell)) for cell, width in zip(cells, widths, strict=True)
    ).rstrip()
