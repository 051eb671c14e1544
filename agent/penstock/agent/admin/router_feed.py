"""Makes the document of the feed for routers, from what the admin service of this process says."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from penstock.agent.admin.in_process import AdminCalls, AnswerError
from penstock.agent.errors import ImpossibleError
from penstock.agent.server.feed_server import FeedContent
from penstock.agent.views.router_feed import MAX_ROWS, FeedAnswers, agent_feed, bounded_json, relay_feed
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.proto.v1.admin_pb2_grpc import AdminServicer

# What a relay combines: of more rows the least bad ones are not counted.
_MOST_COMBINED: Final = 20_000


# A diagnosis reads the log: it is as old as this, as on the page.
_DIAGNOSIS_SECONDS: Final = 10.0


class RouterFeed:
    """Asks the admin service of an agent, or of a relay.

    Args:
        service: of this process.
        judged: the diagnosis that the list of peers quotes; None for a relay, whose peers are told by endpoint.

    """

    def __init__(
        self, service: AdminServicer, judged: Callable[[], Awaitable[admin.Diagnosis | None]] | None = None
    ) -> None:
        self._calls = AdminCalls(service)
        self._judged = self._diagnosis if judged is None else judged
        self._combined = judged is None
        self._newest: admin.Diagnosis | None = None
        self._next = 0.0

    async def content(self) -> FeedContent:
        """Return the document of now.

        Raises:
            ImpossibleError: the service does not answer.

        """
        make = relay_feed if self._combined else agent_feed
        try:
            said = await self._said()
        except AnswerError as error:
            raise ImpossibleError(error.sentence) from error
        now = self._calls.clock()
        # Thousands of rows take longer than the loop may stand still.
        body, identity = await asyncio.to_thread(bounded_json, lambda most: make(said, now, most))
        return FeedContent(body, identity)

    async def _said(self) -> FeedAnswers:
        limit = _MOST_COMBINED if self._combined else MAX_ROWS
        ask = self._calls.call
        # At a time: where an agent of a relay hangs, each takes as long as the relay waits for it.
        peers, engines, quarantines, diagnosis, pairs = await asyncio.gather(
            ask("ListPeers", admin.ListPeersRequest(limit=limit)),
            ask("ListEngines", admin.ListEnginesRequest(without_counters=True)),
            ask("ListQuarantines", admin.ListQuarantinesRequest()),
            self._judged(),
            self._pairs(),
        )
        return FeedAnswers(peers, engines, quarantines, diagnosis, pairs, self._calls.coverage)

    async def _pairs(self) -> admin.ListPairsResponse | None:
        if not self._combined:
            return None
        found: admin.ListPairsResponse = await self._calls.call("ListPairs", admin.ListPairsRequest())
        return found

    async def _diagnosis(self) -> admin.Diagnosis | None:
        if time.monotonic() >= self._next:
            self._newest = await self._calls.call("Diagnose", admin.DiagnoseRequest())
            self._next = time.monotonic() + _DIAGNOSIS_SECONDS
        return self._newest
