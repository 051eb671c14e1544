"""Draws ``top`` with curses."""

from __future__ import annotations

import curses
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.top.layout import BAD, DIM, HEAD, WARN, screen
from penstock.agent.ctl.top.view import SORTS, History

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.ctl.top.layout import Line
    from penstock.agent.ctl.top.view import AgentState

# Milliseconds to wait for a key; bounds the work while idle.
_TICK = 250
_PAGE = 10


def run(newest: Callable[[], list[AgentState]], sort: str, *, colour: bool) -> None:
    """Draw until q is pressed; *newest* returns the samples since its last call, and never blocks."""
    curses.wrapper(lambda window: _Screen(window, newest, sort, colour=colour).loop())


class _Screen:
    def __init__(
        self, window: curses.window, newest: Callable[[], list[AgentState]], sort: str, *, colour: bool
    ) -> None:
        self._window = window
        self._newest = newest
        self._sort = sort
        self._scroll = 0
        self._history = History()
        self._looks = _looks(colour=colour)
        window.timeout(_TICK)
        with suppress(curses.error):
            # A serial console cannot hide its cursor.
            curses.curs_set(0)

    def loop(self) -> None:
        drawn = 0.0
        while True:
            samples = self._newest()
            for sample in samples:
                self._history.add(sample)
            now = current_time()
            # Ages and the clock advance between samples.
            if samples or now - drawn >= 1:
                self._draw(now)
                drawn = now
            key = self._window.getch()
            if key in (ord("q"), ord("Q"), 27):
                return
            if self._on_key(key):
                self._draw(current_time())

    def _on_key(self, key: int) -> bool:
        """Handle a key; return whether to redraw."""
        if key in (ord("s"), ord("S")):
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        elif key == curses.KEY_RESIZE:
            curses.update_lines_cols()
            self._window.clear()
        else:
            moves = {
                curses.KEY_UP: -1, ord("k"): -1, curses.KEY_DOWN: 1, ord("j"): 1,
                curses.KEY_PPAGE: -_PAGE, curses.KEY_NPAGE: _PAGE,
            }  # fmt: skip
            if key not in moves:
                return False
            last = self._history.last
            most = max(len(last.peers), len(last.engines)) if last is not None else 0
            self._scroll = max(0, min(self._scroll + moves[key], max(most - 1, 0)))
        return True

    def _draw(self, now: float) -> None:
        height, width = self._window.getmaxyx()
        lines = screen(self._history, self._sort, self._scroll, width, height, now)
        self._window.erase()
        # The last line lists the keys.
        for row, line in (*enumerate(lines[:-1]), (height - 1, lines[-1])):
            self._write(row, line)
        self._window.refresh()

    def _write(self, row: int, line: Line) -> None:
        column = 0
        for piece in line:
            try:
                self._window.addstr(row, column, piece.text, self._looks.get(piece.style, 0))
            except curses.error:
                # Writing the last cell moves the cursor out of the window, or the window has just shrunk.
                return
            column += len(piece.text)


def _looks(*, colour: bool) -> dict[str, int]:
    """Return the curses attributes of the styles; without colours, only weights."""
    looks = {HEAD: curses.A_BOLD, BAD: curses.A_BOLD, WARN: curses.A_BOLD, DIM: curses.A_DIM}
    if colour and curses.has_colors():
        background = -1
        try:
            curses.use_default_colors()
        except curses.error:
            # The terminal has no default colours.
            background = curses.COLOR_BLACK
        for number, (style, of) in enumerate(((BAD, curses.COLOR_RED), (WARN, curses.COLOR_YELLOW)), 1):
            curses.init_pair(number, of, background)
            looks[style] = curses.color_pair(number) | (curses.A_BOLD if style == BAD else 0)
    return looks
