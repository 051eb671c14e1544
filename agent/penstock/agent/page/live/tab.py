"""One tab: what waits to be sent to it, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from penstock.agent.page.live.entries import Message, message
from penstock.agent.page.live.positions import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.page.live.entries import LogEntry
    from penstock.agent.page.live.positions import Position, Positions

MAX_WAITING_BYTES = 512 * 1024
"""Bytes that may wait for a tab; one that has not read so much is slow."""

_SCREEN = "screen"


class Tab:
    """What is to be sent to one tab.

    Attributes:
        positions: where it stands, with all that waits; None before it is known.
        ended: it gets nothing but a goodbye any more.

    """

    def __init__(self) -> None:
        self.positions: Positions | None = None
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self.ended = False

    def put(self, item: Message) -> None:
        """Add a message. A screen takes the place of one that waits; what does not fit ends the tab."""
        if self.ended:
            return
        if item.event == _SCREEN:
            self._drop_screen()
        if self._bytes + len(item.data) > MAX_WAITING_BYTES:
            self.end(
                "slow",
                "this tab does not read what it is sent, so it was let go; it connects again by itself",
            )
            return
        self._waiting.append(item)
        self._bytes += len(item.data)
        self._wake.set()

    def put_entries(self, entries: Sequence[tuple[str, Position, LogEntry]], shared: Message | None) -> None:
        """Add the entries that the tab does not have yet.

        Args:
            entries: of a part, each with its log and its place there.
            shared: their message for a tab that has none of them; None to make one.

        """
        if self.positions is None:
            return
        new = [each for each in entries if each[1] > self.positions.get(each[0], (-1, -1))]
        if not new:
            return
        self.positions |= {name: place for name, place, _ in new}
        if shared is None or len(new) < len(entries):
            shared = message("log", {"entries": [entry for _, _, entry in new]})
        self.put(Message("log", shared.data, written(self.positions)))

    def end(self, reason: str, sentence: str) -> None:
        """Drop all that waits, and say why the tab ends. Idempotent."""
        if self.ended:
            return
        self.ended = True
        self._waiting.clear()
        self._waiting.append(message("bye", {"reason": reason, "sentence": sentence}))
        self._wake.set()

    async def next(self) -> Message | None:
        """Return the next message; None after the last one."""
        while not self._waiting:
            if self.ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        item = self._waiting.popleft()
        self._bytes = max(0, self._bytes - len(item.data))
        return item

    def _drop_screen(self) -> None:
        for item in [each for each in self._waiting if each.event == _SCREEN]:
            self._waiting.remove(item)
            self._bytes -= len(item.data)
