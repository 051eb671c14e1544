"""Leases at the fleet's policy source: of all relays at most one holds it.

Who may take one, and how long its holder may be sure of it: times are the caller's monotonic seconds.

Clocks of two machines are never compared. A holder counts from before it sends a renewal; the others count from when
they first see it, which is later. So a holder ends before another may begin, whatever wall clocks say.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
from penstock.agent.errors import ConflictError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager


DURATION = 15
"""Of a lease, seconds."""
# Of a holder's time it is sure for two thirds. So a renewal that hangs leaves time for two others.
_RENEWALS = 5
_ATTEMPT_SHARE = 2 / 15
_LEAST_SECONDS = 1.0
_MAX_NAME = 250
_GIVE_BACK_SECONDS = 3.0
_log = structlog.get_logger(__name__)


# A holder gives up after this part of the lease's duration.
_SURE = 2 / 3


class Lease(Protocol):
    """A lease; the loop's.

    Attributes:
        held: whether this relay holds it; False as soon as it cannot be sure. Ask again before each write.
        error: why the last renewal failed; empty if it did not.

    """

    @property
    def held(self) -> bool: ...  # noqa: D102
    @property
    def error(self) -> str: ...  # noqa: D102

    async def run(self) -> None:
        """Take the lease where it is free, and renew it, until cancelled."""

    async def give_back(self) -> None:
        """Let another relay take it at once, after :meth:`run` and all that asks ``held`` has ended; 3 s at most."""


class LeasePlace(Protocol):
    """Where a lease is."""

    async def read(self) -> LeaseWord:
        """Return what is there."""

    async def write(self, holder: str, version: str) -> str:
        """Write *holder*, or that it is given back if that is empty, if the lease is at *version*; return the new one.

        Raises:
            ConflictError: it is at another.

        """


class TimedLease:
    """What leases of both kinds do.

    Attributes:
        duration: seconds.
        holder: this process, by its host and a random number.

    """

    def __init__(self, duration: int, clock: Callable[[], float] | None) -> None:
        self._clock = clock or _now
        self.duration = duration
        # A process that starts again is another holder.
        self.holder = f"{socket.gethostname()[:_MAX_NAME]}_{uuid.uuid4()}"
        self._tenure = Tenure(self.holder, duration)
        self.error = ""

    @property
    def held(self) -> bool:
        """Whether this relay holds the lease."""
        return self._tenure.held(self._clock())

    async def run(self) -> None:
        """Take and renew it until cancelled."""
        limit = max(_ATTEMPT_SHARE * self.duration, _LEAST_SECONDS)
        had = False
        while True:
            begun = self._clock()
            # After a failure soon again.
            pause = limit / 4
            try:
                async with asyncio.timeout(limit):
                    await self.attempt()
                self._complain("")
                pause = self.duration / _RENEWALS - (self._clock() - begun)
            except ConflictError:
                # Another relay was faster.
                self._tenure.lose()
                pause = self.duration / _RENEWALS
            except TimeoutError:
                self._complain("the lease cannot be renewed: its place does not answer in time")
            except PenstockError as error:
                self._complain(f"the lease cannot be renewed: {error}")
            except Exception:  # noqa: BLE001  (a bug must not end the loop)
                self._complain("the lease cannot be renewed, by an error of the relay")
                _log.exception("the lease could not be renewed; retrying")
            if self.held != had:
                had = self.held
                _log.info("lease taken" if had else "lease lost", holder=self.holder)
            await asyncio.sleep(max(pause, 0.0))

    async def give_back(self) -> None:
        """Write that it is free, if this relay holds it; where that fails, another one takes it after its time."""
        if not self.held:
            return
        self._tenure.lose()
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS), self.place() as place:
                word = await place.read()
                if word.holder == self.holder:
                    await place.write("", word.version)
                    _log.info("lease given back", holder=self.holder)
        except (PenstockError, TimeoutError) as error:
            _log.warning(
                "the lease could not be given back; another relay takes it when it expires", reason=str(error)
            )

    def place(self) -> AbstractAsyncContextManager[LeasePlace]:
        """Connect to where it is."""
        raise NotImplementedError

    async def attempt(self) -> None:
        """Read the lease, and take or renew it if that is allowed."""
        async with self.place() as place:
            word = await place.read()
            self._tenure.see(word, self._clock())
            asked = self._clock()
            if self._tenure.may_take(asked):
                self._tenure.renewed(await place.write(self.holder, word.version), asked)

    def _complain(self, text: str) -> None:
        if text and text != self.error:
            _log.warning("lease away", reason=text)
        self.error = text


def _now() -> float:
    """Return seconds of a clock that is never set, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class LeaseWord:
    """What the lease says.

    Attributes:
        holder: its name; empty if the lease is absent or was given back.
        duration: for how long it is valid after each renewal, seconds; 0 if it was given back.
        version: changes with each renewal; empty if the lease is absent.

    """

    holder: str
    duration: float
    version: str

    @property
    def given_back(self) -> bool:
        """Whether its last holder wrote that it holds it no more."""
        return bool(self.version) and not self.holder and not self.duration


class Tenure:
    """What one relay knows of a lease."""

    def __init__(self, name: str, duration: float) -> None:
        """Know nothing yet.

        Args:
            name: of this holder, no other's ever.
            duration: of its own renewals, seconds.

        """
        self._name = name
        self._duration = duration
        self._seen: tuple[LeaseWord, float] | None = None
        self._sure_until = float("-inf")

    def see(self, word: LeaseWord, now: float) -> None:
        """Note what the lease says at *now*; another holder ends one's own tenure."""
        if self._seen is None or self._seen[0] != word:
            self._seen = (word, now)
        if word.holder != self._name:
            self.lose()

    def may_take(self, now: float) -> bool:
        """Return whether to write one's own name at the version that was seen last.

        An absent lease is waited for as well: it may have been deleted under its holder.
        """
        if self._seen is None:
            return False
        word, since = self._seen
        free = word.given_back or word.holder == self._name
        return free or now - since >= max(word.duration, self._duration)

    def renewed(self, version: str, asked: float) -> None:
        """Note that the lease took one's own name; *asked*: when the request was sent."""
        self._seen = (LeaseWord(self._name, self._duration, version), asked)
        self._sure_until = asked + self._duration * _SURE

    def lose(self) -> None:
        """Note that the lease is another's."""
        self._sure_until = float("-inf")

    def held(self, now: float) -> bool:
        """Return whether no other relay can have the lease."""
        return now < self._sure_until
