"""Follows the logs for all tabs with one stream; a tab that was away gets what it missed from the journal."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import structlog
from penstock.agent.page.live.entries import KINDS, log_entry, message, parts
from penstock.agent.page.live.tab import WHOLE, Position, Positions, begins, ends, of_entry, resumed, written
from penstock.agent.page.wire import AnswerError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.page.live.entries import LogEntry
    from penstock.agent.page.live.tab import Tab
    from penstock.agent.page.wire import AdminCalls

_log = structlog.get_logger(__name__)

# What comes within it makes one message.
_GATHER_SECONDS = 0.5
_REST_SECONDS = 0.4
_MOST_TOGETHER = 200
_AGAIN_SECONDS = 1.0


class Follower:
    """One stream of the logs for all tabs, each of which takes what lies behind its own position.

    A tab that stands before the stream begins it anew from there: the others skip what they have. So nothing is missed
    and nothing comes twice, and all tabs cost one stream.
    """

    def __init__(self, calls: AdminCalls, tabs: Callable[[], Iterable[Tab]]) -> None:
        self._calls = calls
        self._tabs = tabs
        # Where the stream has come to, with what waits in the list.
        self._at: Positions = {}
        self._found: list[tuple[str, Position, LogEntry]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._relayed = False

    async def join(self, tabs: Mapping[Tab, Positions | None]) -> None:
        """Let *tabs* begin, each after its position, or now; they are among the tabs already.

        Raises:
            AnswerError: the admin service does not answer.

        """
        status = await self._calls.call("GetStatus", admin.GetStatusRequest())
        self._relayed = not status.state_dir
        self._give()
        for tab, after in tabs.items():
            start = self._begin(tab, after, status)
            if self._task is None:
                self._follow(start)
            elif any(place < self._at.get(name, place) for name, place in start.items()):
                await self.stop()
                self._follow(
                    self._at | {name: min(place, self._at.get(name, place)) for name, place in start.items()}
                )

    def _begin(self, tab: Tab, after: Positions | None, status: admin.AgentStatus) -> Positions:
        """Tell a tab where it begins, and what it misses; return the position."""
        sentences: list[str] = []
        if after is None:
            # What the stream has not come to yet is the tab's as well.
            start = {**ends(status), **(self._at if self._task is not None else {})}
        else:
            start, sentences = resumed(after, ends(status), begins(status))
        tab.positions = dict(start)
        for sentence in sentences:
            tab.put(message("gap", {"sentence": sentence}, written(start)))
        if after is None:
            # A tab that is cut off before the first entry resumes as well.
            tab.put(message("log", {"entries": []}, written(start)))
        return start

    def _follow(self, start: Positions) -> None:
        self._at = dict(start)
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End the stream. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._give()

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except AnswerError as error:
                _log.debug("the page's stream of the log has ended; it begins again", reason=error.sentence)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _read(self) -> None:
        """Read the stream to its end."""
        behind = False
        async with aclosing(self._calls.stream("WatchEvents", self._request())) as stream:
            async for event in stream:
                name, place = of_entry(event)
                before = self._at.get(name)
                if before is not None and place <= before:
                    if place.batch == before.batch or not self._relayed:
                        continue
                    # A relay itself leaves out what it has passed on: the log was replaced.
                    self._give()
                    self._forget(name)
                self._at[name] = place
                self._found.append((name, place, log_entry(event)))
                if len(self._found) >= _MOST_TOGETHER:
                    self._give()
                    behind = True
                elif self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._give)
                    if not behind:
                        await _rest()
                    behind = False

    def _request(self) -> admin.ListEventsRequest:
        request = admin.ListEventsRequest(kinds=KINDS)
        if self._relayed:
            request.after_agents.extend(
                admin.AgentPosition(agent=name, batch=_before(place)) for name, place in self._at.items()
            )
        else:
            request.after_batch = _before(self._at.get("", Position(0, 0)))
        return request

    def _forget(self, name: str) -> None:
        for tab in self._tabs():
            if tab.positions is not None:
                tab.positions.pop(name, None)

    def _give(self) -> None:
        """Give the tabs what was found."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        found, self._found = self._found, []
        begin = 0
        for part in parts("log", [entry for _, _, entry in found]):
            given = found[begin : begin + len(part.entries)]
            begin += len(part.entries)
            for tab in self._tabs():
                tab.put_entries(given, part.message)


async def _rest() -> None:
    """Let entries gather in the log: they are read at once, where each would be a read of its own."""
    await asyncio.sleep(_REST_SECONDS)


def _before(place: Position) -> int:
    """Return the batch after which a stream begins that brings all that lies behind *place*."""
    return place.batch if place.entry == WHOLE else max(place.batch - 1, 0)
