"""Lists of ``get``, ``drill list`` and ``quarantine list``: their options, and printing in any format, once or with its changes."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import FailedError, UnreachableError, UsageError
from penstock.agent.ctl.output import say_document, say_documents, say_lines
from penstock.agent.ctl.printing import JSONPATH, is_table, say, with_output
from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.views.tables import Table


# Seconds between two answers.
INTERVAL = 1.0
# Ages change by themselves, and so do durations of what is not over and quantiles of the last minutes.
_TIME = r"[\d.]+(µs|ms|[smhd])"
_MOVING = re.compile(rf"(?<![\w.])(in )?{_TIME}( ago|/{_TIME})?(?!\w)")
Identity = tuple[str, str, int]

F = TypeVar("F", bound="Callable[..., Any]")


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


class Changes:
    """The rows of the last listing, by what they are; its size is that of one listing."""

    def __init__(self) -> None:
        self._seen: dict[Identity, tuple[str, tuple[str, ...]]] = {}

    def update(self, listing: Listing) -> tuple[list[int], list[str]]:
        """Return the indices of the rows that are new or differ in more than times, and the names of those gone."""
        times: Counter[tuple[str, str]] = Counter()
        found: dict[Identity, tuple[str, tuple[str, ...]]] = {}
        changed = []
        headers, rows, _ = listing.table.narrow()
        at = headers.index("ENGINE") if "ENGINE" in headers else None
        for index, (name, row) in enumerate(zip(listing.names, rows, strict=True)):
            engine = "" if at is None else row[at]
            times[engine, name] += 1
            identity = engine, name, times[engine, name]
            cells = tuple(_MOVING.sub("", cell) for cell in row)
            if self._seen.get(identity) != (name, cells):
                changed.append(index)
            found[identity] = name, cells
        gone = [name for identity, (name, _) in self._seen.items() if identity not in found]
        self._seen = found
        return changed, [] if listing.limited else list(dict.fromkeys(gone))


class RowPrinter:
    """Prints rows as they come, in one format; a table has its headers once."""

    def __init__(self, style: ListStyle) -> None:
        self._style = style
        self._widths: list[int] = []
        self._left = style.count
        self._headers = style.headers

    def show(self, listing: Listing, indices: Iterable[int]) -> bool:
        """Print the rows at *indices*, no more than ``--count`` leaves; return whether it is reached."""
        chosen = list(indices)[: self._left]
        output = self._style.output
        if not chosen:
            return False
        if self._style.is_table:
            shown = listing.table if output == "wide" else listing.table.narrow()
            head = [shown.headers] if self._headers else []
            self._headers = False
            self._widths = say_lines([*head, *(shown.rows[index] for index in chosen)], self._widths)
        elif output == "name":
            say(*(f"{listing.kind}/{listing.names[index]}" for index in chosen))
        else:
            items = listing.items()
            for index in chosen:
                self._show_item(items[index], listing.names[index], output)
        if self._left is not None:
            self._left -= len(chosen)
        return self._left is not None and self._left <= 0

    @staticmethod
    def _show_item(item: dict[str, object], name: str, output: str) -> None:
        if output == "yaml":
            say("---")
        if output.startswith(JSONPATH):
            item = {"name": name, **item}
        say_document(item, "line" if output == "json" else output)


def watch_rows(
    fetch: Callable[[], Listing],
    listing: Listing,
    style: ListStyle,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print *listing*, then what changes in the listings of *fetch*, until interrupted or ``--count`` is reached."""
    changes, printer = Changes(), RowPrinter(style)
    while True:
        changed, gone = changes.update(listing)
        for name in gone:
            say(f"{listing.kind}/{name} is gone", err=True)
        if printer.show(listing, changed):
            return
        sleep(INTERVAL)
        listing = _fetch_again(fetch, sleep)


def _fetch_again(fetch: Callable[[], Listing], sleep: Callable[[float], None]) -> Listing:
    """Return the next listing; without an agent, say so and wait for one."""
    lost = False
    while True:
        try:
            listing = fetch()
        except UnreachableError:
            if not lost:
                say(text.style("connection to the agent lost; reconnecting", "yellow"), err=True)
            lost = True
            sleep(INTERVAL)
            continue
        if lost:
            say(text.style("reconnected to the agent", "green"), err=True)
        return listing


def with_listing(function: F) -> F:
    """Add ``-o``, ``--no-headers``, ``-w`` and ``--count`` as one argument ``style``."""

    @functools.wraps(function)
    def command(
        *args: Any, output: str, no_headers: bool, watch: bool, count: int | None, **arguments: Any
    ) -> Any:
        if count is not None and not watch:
            raise UsageError("--count ends a --watch; give both")
        if watch and bundle_of(click.get_current_context()):
            raise UsageError("a bundle does not change; omit --watch")
        return function(*args, style=ListStyle(output, not no_headers, watch, count), **arguments)

    options = (
        with_output(wide=True, names=True),
        click.option("--no-headers", is_flag=True, help="Omit the headers of the table."),
        click.option(
            "--watch", "-w", is_flag=True, help="Print changed rows as they change, until interrupted."
        ),
        click.option(
            "--count", type=click.IntRange(min=1), metavar="N", help="With --watch: exit after N rows."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command  # type: ignore[return-value]


def show_listing(fetch: Callable[[], Listing], style: ListStyle) -> None:
    """Print what *fetch* returns; with ``-w``, then its changes.

    Raises:
        FailedError: a name that was asked for is not there; what is there is printed before.

    """
    if style.watch:
        # An interrupt is how a watch ends.
        with suppress(KeyboardInterrupt):
            listing = _found(fetch())
            _show_notes(listing, style)
            watch_rows(fetch, listing, style)
        return
    listing = fetch()
    if listing.names:
        show_once(listing, style)
    _found(listing)
    if not listing.names:
        show_once(listing, style)


def _found(listing: Listing) -> Listing:
    if listing.missing:
        raise FailedError("; ".join(listing.missing))
    return listing


def show_once(listing: Listing, style: ListStyle) -> None:
    """Print a listing."""
    output = style.output
    if output == "name":
        if listing.names:
            say(*dict.fromkeys(f"{listing.kind}/{name}" for name in listing.names))
    elif not style.is_table:
        _show_document(listing, output)
    elif not listing.names:
        say(listing.nothing, err=True)
    else:
        shown = listing.table if output == "wide" else listing.table.narrow()
        say_lines([*([shown.headers] if style.headers else []), *shown.rows])
    _show_notes(listing, style)


def _show_notes(listing: Listing, style: ListStyle) -> None:
    if style.is_table and listing.notes:
        say(*listing.notes, err=True)


def _show_document(listing: Listing, output: str) -> None:
    document = listing.document()
    items = document[listing.field]
    if output.startswith(JSONPATH):
        # As kubectl's lists: .items, and the name of each.
        items = [{"name": name, **item} for name, item in zip(listing.names, items, strict=True)]
        say_document(items[0] if listing.single else {**document, "items": items}, output)
    elif listing.manifests and output == "yaml":
        say_documents(items)
    else:
        say_document(items[0] if listing.single else document, output)
