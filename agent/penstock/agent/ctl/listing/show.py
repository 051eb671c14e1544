"""The options of ``get``, and the printing of what it lists: in any format, once or with its changes."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import FailedError, UsageError
from penstock.agent.ctl.listing.model import Listing, ListStyle
from penstock.agent.ctl.listing.watch import watch_rows
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.formats import JSONPATH, with_output
from penstock.agent.ctl.printing.output import say_document, say_documents, say_lines

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


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
