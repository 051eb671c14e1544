"""The judgement: the newest diagnosis of all engines. Other answers quote it and judge nothing themselves."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog
from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.proto.v1 import admin_pb2 as admin

_log = structlog.get_logger(__name__)

_PERIOD_SECONDS: Final = 15.0
# A judgement as young as this is not made anew.
_FRESH_SECONDS: Final = 1.0
# Times that a judgement takes, until the next: it has a fiftieth of a core at most.
_PAUSE: Final = 50.0


class Judge:
    """Makes judgements, as often as their cost allows. Of one event loop.

    Args:
        clock: seconds that only grow.

    Attributes:
        latest: the newest judgement; None before the first, and where none can be made.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.latest: admin.Diagnosis | None = None
        self._clock = clock
        self._next = 0.0
        self._turn = asyncio.Lock()

    async def judgement(self, diagnose: Callable[[], Awaitable[admin.Diagnosis]]) -> admin.Diagnosis | None:
        """Return a judgement of the last second, or the newest that its cost allows; None where the log cannot be read.

        Args:
            diagnose: makes a diagnosis of all engines; may raise ``PenstockError``.

        """
        async with self._turn:
            began = self._clock()
            if began >= self._next:
                try:
                    self.latest = await diagnose()
                except PenstockError:
                    # The call that asks for a diagnosis says why.
                    self.latest = None
                self._next = began + max(_FRESH_SECONDS, _PAUSE * (self._clock() - began))
            return self.latest

    async def keep_judging(
        self, diagnose: Callable[[], Awaitable[admin.Diagnosis]], period: float = _PERIOD_SECONDS
    ) -> None:
        """Judge every *period* seconds, for who only looks at ``latest``; until cancelled."""
        while True:
            try:
                await self.judgement(diagnose)
            except Exception:  # noqa: BLE001  (a rule that raises must not end the judging)
                self.latest = None
                _log.exception("the conditions cannot be judged; please report it")
            await asyncio.sleep(period)
