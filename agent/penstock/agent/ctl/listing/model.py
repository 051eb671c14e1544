"""What ``get`` lists, and how it is printed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.agent.ctl.printing.formats import is_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.agent.views.tables import Table


@dataclass(frozen=True, slots=True)
class ListStyle:
    """How a listing is printed.

    Attributes:
        output: the format.
        headers: whether a table begins with its headers.
        watch: whether changes are printed as they come.
        count: with *watch*, the number of rows after which the command ends; None for no end.

    """

    output: str
    headers: bool = True
    watch: bool = False
    count: int | None = None

    @property
    def is_table(self) -> bool:
        """Whether this is a table."""
        return is_table(self.output)


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer to ``get``.

    Attributes:
        kind: what is listed, in the singular.
        table: its rows.
        names: the name of each row.
        document: makes the JSON values.
        field: the list in the document, parallel to the rows.
        nothing: the sentence if there are no rows.
        notes: sentences for stderr behind a table.
        missing: a sentence for each name that was asked for and is not there.
        single: whether one object was asked for by its name: its document is the object itself.
        manifests: whether the items are documents of their own in YAML.
        limited: whether older rows make room for newer ones.

    """

    kind: str
    table: Table
    names: Sequence[str]
    document: Callable[[], dict[str, Any]]
    field: str
    nothing: str
    notes: Sequence[str] = ()
    missing: Sequence[str] = ()
    single: bool = False
    manifests: bool = False
    limited: bool = False

    def items(self) -> list[dict[str, Any]]:
        """Return the JSON values of the rows."""
        found: list[dict[str, Any]] = self.document()[self.field]
        return found


def nothing_fits(selector: str, text: str) -> str:
    """Return *text*, or a sentence about the selector if there is one."""
    return f"no engine matches {selector!r}; omit --selector to list all" if selector else text
