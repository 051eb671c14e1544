"""The map of all tabs: made anew every few seconds as long as there are tabs, of a large fleet less often."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from penstock.agent.aio import ThreadYield
from penstock.agent.fleet_map import grouped, whole_map
from penstock.agent.page.live.entries import Message
from penstock.agent.page.live.poller import SHARE, cost_of_engines, cost_of_peers
from penstock.agent.page.screen import encoded_map, shown_map
from penstock.agent.page.wire import AnswerError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.page.wire import AdminCalls

_log = structlog.get_logger(__name__)

_EVERY_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 120.0


class _Answers(NamedTuple):
    now: float
    engines: admin.ListEnginesResponse
    peers: admin.ListPeersResponse
    pairs: admin.ListPairsResponse


class MapTeller:
    """Keeps the newest map, and gives each one that says something else to *publish*.

    Attributes:
        message: the newest one; None before the first.

    """

    def __init__(self, calls: AdminCalls, publish: Callable[[Message], None]) -> None:
        self._calls = calls
        self._publish = publish
        self.message: Message | None = None

    async def keep_telling(self) -> None:
        """Make one map after the other; until cancelled."""
        self.message = None
        while True:
            pause = _EVERY_SECONDS
            try:
                answers = await self._ask()
                message, took = await asyncio.to_thread(_made, answers)
                took += cost_of_engines(answers.engines) + cost_of_peers(answers.peers)
                pause = max(pause, min(took / SHARE, _LONGEST_SECONDS))
                if message != self.message:
                    self.message = message
                    self._publish(message)
            except AnswerError:
                # The screen says that nobody answers; the map that there is says of when it is.
                pass
            except Exception:  # noqa: BLE001  (a map that fails leaves the one before, and the next one is made)
                _log.exception("the map cannot be told; please report it")
            await asyncio.sleep(pause)

    async def _ask(self) -> _Answers:
        return _Answers(
            self._calls.clock(),
            await self._calls.call("ListEngines", admin.ListEnginesRequest(without_counters=True)),
            await self._calls.call("ListPeers", admin.ListPeersRequest()),
            await self._calls.call("ListPairs", admin.ListPairsRequest()),
        )


def _made(answers: _Answers) -> tuple[Message, float]:
    """Return the message, and the seconds of CPU that it took. On any thread."""
    began = time.thread_time()
    whole = whole_map(
        answers.engines.engines, answers.peers.peers, answers.pairs.engines, between=ThreadYield()
    )
    encoded = encoded_map(shown_map(grouped(whole), answers.now))
    return Message("map", encoded), time.thread_time() - began
