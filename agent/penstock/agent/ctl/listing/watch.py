"""``get … --watch``: prints a listing, then the rows that change, over restarts of the agent."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.agent.ctl.errors import UnreachableError
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.formats import JSONPATH
from penstock.agent.ctl.printing.output import say_document, say_lines
from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.ctl.listing.model import Listing, ListStyle

# Seconds between two answers.
INTERVAL = 1.0
# Ages change by themselves, and so do durations of what is not over and quantiles of the last minutes.
_TIME = r"[\d.]+(µs|ms|[smhd])"
_MOVING = re.compile(rf"(?<![\w.])(in )?{_TIME}( ago|/{_TIME})?(?!\w)")

Identity = tuple[str, str, int]


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
