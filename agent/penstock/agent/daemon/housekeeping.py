"""Once a second: copies the policies, claims the directory, looks at the memory, checks the health."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.agent.errors import DamageError, StateError, TakenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.daemon.health import Health
    from penstock.agent.policy.store import PolicyDatabase
    from penstock.agent.state import StateDirectory

_SECONDS = 1.0


class Housekeeper:
    """A task on the loop.

    Args:
        look_at_memory: returns why nothing is taken from engines; empty while it is.
        fatal: resolves to the error after which the agent cannot continue.

    """

    def __init__(
        self,
        place: StateDirectory,
        policies: PolicyDatabase,
        health: Health,
        look_at_memory: Callable[[], str],
        fatal: asyncio.Future[StateError],
    ) -> None:
        self._place = place
        self._policies = policies
        self._health = health
        self._look_at_memory = look_at_memory
        self._fatal = fatal
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Stop, after a last copy."""
        self._task.cancel()
        await asyncio.wait({self._task})
        with suppress(StateError):
            await asyncio.to_thread(self._policies.copy)

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._check)
                self._health.not_copied = ""
            except TakenError as error:
                self._end(error)
            except (StateError, OSError) as error:
                self._health.not_copied = str(error)
            self._health.memory_short = self._look_at_memory()
            if ended := self._health.health():
                self._end(DamageError(ended))
            await asyncio.sleep(_SECONDS)

    def _check(self) -> None:
        self._place.claim()
        self._policies.copy()

    def _end(self, error: StateError) -> None:
        if not self._fatal.done():
            self._fatal.set_result(error)
