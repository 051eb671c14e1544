"""The kill switch: paused engines, kept in ``policy.db`` over restarts, with the end of those that have one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from penstock.agent.aio import ChangeSignal, Listeners, to_completion
from penstock.agent.errors import StateError
from penstock.agent.model import EngineKey
from penstock.agent.policy.orders import pause
from penstock.agent.policy.orders.pause import Pause
from penstock.agent.policy.store import MAX_TEXT, ClockSteps, audit, boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from penstock.agent.policy.orders.pause import PauseStates
    from penstock.agent.policy.store import Clock, PolicyDatabase

_log = structlog.get_logger(__name__)

KIND = "pause"
"""Of the rows of ``timed_order`` that say who paused an engine, why, since when and until when."""

_AGENT = "penstock-agent"
_ENDED = "its time to live has ended"
# Seconds: until a step of the time of day is noticed at the latest, and until another try on a full disk.
_LONGEST_SLEEP = 30.0
_TRY_AGAIN = 5.0


class Pauses:
    """The paused engines. Reads are from memory, on any thread.

    A step of the time of day makes no time to live longer or shorter.
    """

    def __init__(
        self, database: PolicyDatabase, *, clock: Clock = time.time, steady: Clock = boot_seconds
    ) -> None:
        """Load the state; *clock* gives seconds since the epoch, *steady* seconds that nothing sets."""
        self._database = database
        self._clock = clock
        self._steps = ClockSteps(clock, steady)
        self._listeners = Listeners()
        self._turn = asyncio.Lock()
        self._changed = ChangeSignal()
        # Ends that took effect and are not in the audit log yet.
        self._unwritten: list[audit.Change] = []
        with database.reading() as connection:
            rows = connection.execute("SELECT server, engine, paused FROM pause").fetchall()
            texts = connection.execute("SELECT document FROM timed_order WHERE kind = ?", (KIND,)).fetchall()
        known = _read(text for (text,) in texts)
        self._states: PauseStates = {
            (key := EngineKey(server, engine)): known.get(key, Pause()) if paused else None
            for server, engine, paused in rows
        }

    def is_paused(self, key: EngineKey) -> bool:
        """Return whether *key* is paused; a front end's key has an empty engine."""
        return self.of(key) is not None

    def of(self, key: EngineKey) -> Pause | None:
        """Return the pause of *key*; None if it is not paused."""
        return pause.pause_of(self._states, key)

    def ends_unix_nano(self, key: EngineKey) -> int:
        """Return when the pause of *key* ends by itself; 0 without a pause or without an end."""
        order = self.of(key)
        return 0 if order is None else order.ends_unix_nano

    async def set(
        self,
        keys: Iterable[EngineKey] | None,
        paused: bool,
        *,
        author: str,
        which: str,
        reason: str = "",
        ttl: timedelta | None = None,
    ) -> None:
        """Pause or resume *keys*, or every engine, present and future, with None.

        Args:
            keys: the engines and front ends; None for every one.
            paused: False resumes them.
            author: for the audit log, and for those who see the pause.
            which: describes the engines for the audit log.
            reason: as *author*.
            ttl: after it the pause ends by itself; None: only a resume ends it.

        Raises:
            StateError: the change could not be written; nothing changed.

        """
        async with self._turn:
            self._follow_clock()
            order = self._order(author, reason, ttl) if paused else None
            states = pause.changed(self._states, keys, order)
            change = audit.Change(
                author=author,
                action="pause" if paused else "resume",
                name=which,
                reason=reason,
                new_manifest=pause.document(order) if order is not None and ttl is not None else "",
            )
            await to_completion(self._write(states, change))

    async def end_due(self, engines: Iterable[EngineKey]) -> None:
        """End the pauses whose time to live has ended; *engines*: all engines.

        They end also if that cannot be written; the audit log gets the entry once it can.
        """
        async with self._turn:
            self._follow_clock()
            states, keys = pause.ended(self._states, self._now_unix_nano, engines)
            if keys:
                name = pause.engines_named(keys)
                self._unwritten.append(audit.Change(author=_AGENT, action="resume", name=name, reason=_ENDED))
                _log.info("pause ended", engines=name, reason=_ENDED)
                self._take(states)
            if self._unwritten:
                try:
                    await to_completion(self._write(states))
                except StateError as error:
                    _log.warning("the end of a pause is not written yet", error=str(error))

    async def keep_ending(self, engines: Callable[[], Iterable[EngineKey]]) -> None:
        """End each pause at its time, until cancelled; *engines* returns all engines."""
        while True:
            seen = self._changed.version
            try:
                await self.end_due(engines())
            except Exception:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("pauses could not be ended; retrying")
                await asyncio.sleep(_TRY_AGAIN)
            await self._changed.wait(seen, self._seconds_until_due())

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; return a function that unsubscribes."""
        return self._listeners.add(callback)

    def _follow_clock(self) -> None:
        if step := self._steps.look():
            _log.warning("the time of day was set; pauses keep the time that they have left", seconds=step)
            self._states = pause.moved(self._states, step)

    @property
    def _now_unix_nano(self) -> int:
        return int(self._clock() * 1e9)

    def _order(self, author: str, reason: str, ttl: timedelta | None) -> Pause:
        now = self._now_unix_nano
        ends = 0 if ttl is None else now + int(ttl.total_seconds() * 1e9)
        return Pause(
            author=author[:MAX_TEXT], reason=reason[:MAX_TEXT], began_unix_nano=now, ends_unix_nano=ends
        )

    def _seconds_until_due(self) -> float:
        now = self._now_unix_nano
        orders = [order for order in self._states.values() if order is not None]
        left = [nano / 1e9 for order in orders if (nano := order.left_nano(now)) is not None]
        return max(0.001, min([_TRY_AGAIN if self._unwritten else _LONGEST_SLEEP, *left]))

    async def _write(self, states: PauseStates, *changes: audit.Change) -> None:
        unwritten = tuple(self._unwritten)

        def write() -> None:
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM pause")
                connection.executemany(
                    "INSERT INTO pause VALUES (?, ?, ?)",
                    [(key.server, key.engine, int(order is not None)) for key, order in states.items()],
                )
                connection.execute("DELETE FROM timed_order WHERE kind = ?", (KIND,))
                connection.executemany(
                    "INSERT INTO timed_order (kind, document) VALUES (?, ?)", _documents(states)
                )
                for change in (*unwritten, *changes):
                    audit.append(connection, change, self._now_unix_nano)

        await asyncio.to_thread(write)
        del self._unwritten[: len(unwritten)]
        if states != self._states:
            self._take(states)

    def _take(self, states: PauseStates) -> None:
        self._states = states
        self._changed.notify()
        self._listeners.call()


def _documents(states: PauseStates) -> Sequence[tuple[str, str]]:
    return [(KIND, pause.document(order, key)) for key, order in states.items() if order is not None]


def _read(texts: Iterable[str]) -> dict[EngineKey, Pause]:
    """Return the pauses by key; skip those of another version, which last until a resume."""
    found = {}
    for text in texts:
        try:
            key, order = pause.read_pause(text)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("a pause of another version lasts until 'agentctl resume'", error=repr(error))
            continue
        found[key] = order
    return found
