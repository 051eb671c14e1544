"""All tabs of a page: they share one poller and one stream of the log, which work only while there are tabs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.page.live.entries import Message, message
from penstock.agent.page.live.fleet_map import MapTeller
from penstock.agent.page.live.follower import Follower
from penstock.agent.page.live.history import ask_earlier, ask_history
from penstock.agent.page.live.poller import ScreenPoller
from penstock.agent.page.live.signals import ask_signals, keep_telling
from penstock.agent.page.live.tab import Tab
from penstock.agent.page.wire import AnswerError, plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.agent.page.live.tab import Positions
    from penstock.agent.page.wire import AdminCalls

MAX_TABS = 16
"""Maximum tabs of one page."""

_PULSE_SECONDS = 2.0
_MAX_MISSING = 50


class _Joining(NamedTuple):
    """A tab that joins after a position, or from now on, with so many *seconds* of history."""

    tab: Tab
    after: Positions | None
    seconds: int


class Hub:
    """Lets tabs join and leave, and gives each message to all of them."""

    def __init__(self, calls: AdminCalls, since: float | None) -> None:
        self._calls = calls
        self._tabs: dict[Tab, None] = {}
        # Tabs that come while others join do so together: what they show is asked for once.
        self._waiting: list[_Joining] = []
        self._joiner: asyncio.Task[None] | None = None
        # Of those that join, and of the end of the work.
        self._turn = asyncio.Lock()
        self._poller = ScreenPoller(calls, self._publish, since)
        self._follower = Follower(calls, lambda: tuple(self._tabs))
        self._map = MapTeller(calls, self._publish)
        self._tellers: list[asyncio.Task[None]] = []
        self._closed = False

    def admit(self) -> Tab:
        """Return a new tab; one that ends at once where there are too many, or at the end of the process."""
        tab = Tab()
        if self._closed:
            tab.end("stopping", "the server is stopping; this tab connects again when it is back")
        elif len(self._tabs) >= MAX_TABS:
            tab.end("full", f"{MAX_TABS} tabs are open at this page, which is the limit; close one")
        else:
            self._tabs[tab] = None
        return tab

    def join(self, tab: Tab, after: Positions | None, seconds: int) -> None:
        """Let an admitted tab have what there is, and what comes: after a position, or from now on."""
        if tab not in self._tabs:
            return
        self._waiting.append(_Joining(tab, after, seconds))
        if self._joiner is None or self._joiner.done():
            self._joiner = asyncio.ensure_future(self._let_join())

    async def leave(self, tab: Tab) -> None:
        """Forget a tab; the last one ends the work. Idempotent."""
        self._tabs.pop(tab, None)
        if not self._tabs:
            await self._stop_joining()
            async with self._turn:
                if not self._tabs:
                    await self._end_work()

    async def close(self) -> None:
        """Say goodbye to all tabs, and end the work."""
        self._closed = True
        for tab in self._tabs:
            tab.end("stopping", "the server is stopping; this tab connects again when it is back")
        await self._stop_joining()
        async with self._turn:
            await self._end_work()

    async def _let_join(self) -> None:
        while self._waiting:
            async with self._turn:
                joining, self._waiting = self._waiting, []
                present = [each for each in joining if each.tab in self._tabs]
                try:
                    await self._join_together(present)
                except AnswerError as error:
                    for each in present:
                        each.tab.end("stopping", error.sentence)

    async def _join_together(self, joining: Sequence[_Joining]) -> None:
        if not joining:
            return
        self._poller.start()
        if not self._tellers:
            work = (
                self._keep_pulsing(),
                keep_telling(self._calls, self._publish),
                self._map.keep_telling(),
            )
            self._tellers = [asyncio.ensure_future(each) for each in work]
        pulse = self._pulse_message()
        for each in joining:
            for item in (self._poller.screen, self._map.message):
                if item is not None:
                    each.tab.put(item)
            each.tab.put(pulse)
        await self._tell(joining, ask_history)
        await self._tell(joining, ask_signals)
        await self._follower.join({each.tab: each.after for each in joining})
        await self._tell([each for each in joining if each.after is None], ask_earlier)

    async def _tell(
        self, joining: Sequence[_Joining], ask: Callable[[AdminCalls, int], Awaitable[Sequence[Message]]]
    ) -> None:
        """Ask once for each number of seconds, and give the messages to the tabs that want so many."""
        for seconds in {each.seconds for each in joining}:
            for item in await ask(self._calls, seconds):
                for each in joining:
                    if each.seconds == seconds:
                        each.tab.put(item)

    async def _stop_joining(self) -> None:
        joiner, self._joiner = self._joiner, None
        if joiner is not None:
            joiner.cancel()
            await asyncio.wait([joiner])

    async def _end_work(self) -> None:
        tellers, self._tellers = self._tellers, []
        for each in tellers:
            each.cancel()
        self._map.message = None
        await self._poller.stop()
        await self._follower.stop()

    def _publish(self, item: Message) -> None:
        for tab in tuple(self._tabs):
            tab.put(item)

    async def _keep_pulsing(self) -> None:
        while True:
            await asyncio.sleep(_PULSE_SECONDS)
            self._publish(self._pulse_message())

    def _pulse_message(self) -> Message:
        answers = self._poller.answers
        known = 1 if answers.status is None or not answers.status.agents else len(answers.status.agents)
        coverage = answers.coverage
        missing = [
            {"name": plain(each.name, 120), "reason": plain(each.reason, 200)}
            for each in (() if coverage is None else coverage.missing[:_MAX_MISSING])
        ]
        agents = {
            "asked": known if coverage is None else coverage.asked,
            "answered": known if coverage is None else coverage.answered,
            "missing": missing,
        }
        return message(
            "pulse",
            {
                "now": round(self._calls.clock() * 1e3),
                "dataTime": round(answers.data_time * 1e3),
                "agents": agents,
            },
        )
