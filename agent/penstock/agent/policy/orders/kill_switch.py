"""The kill switch: paused engines, kept in ``policy.db`` over restarts, with the end of those that have one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import structlog
from penstock.agent.aio import ChangeSignal, Listeners, to_completion
from penstock.agent.errors import StateError
from penstock.agent.model import EngineKey
from penstock.agent.policy.store import MAX_TEXT, ClockSteps, audit, boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.policy.store import Clock, PolicyDatabase

ALL = EngineKey("*", "*")
MAX_PAUSE = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause; immutable. One of an older agent has no author, reason and beginning.

    Attributes:
        began_unix_nano: by the agent's clock; 0 for unknown.
        ends_unix_nano: likewise; 0 for a pause that only a resume ends. With an end, both follow the clock when it is
            set.

    """

    author: str = ""
    reason: str = ""
    began_unix_nano: int = 0
    ends_unix_nano: int = 0

    def left_nano(self, now_unix_nano: int) -> int | None:
        """Return the remaining nanoseconds, at most the whole time to live; None without an end."""
        if not self.ends_unix_nano:
            return None
        whole = self.ends_unix_nano - self.began_unix_nano
        return max(0, min(self.ends_unix_nano - now_unix_nano, whole))

    def outlasts(self, other: Pause) -> bool:
        """Return whether it ends later than *other*."""
        if not other.ends_unix_nano:
            return False
        return not self.ends_unix_nano or self.ends_unix_nano > other.ends_unix_nano


PauseStates: TypeAlias = dict[EngineKey, Pause | None]
"""Pauses by engine or for :data:`ALL`; None for an engine that is exempt from the pause of all engines."""


def pause_of(states: PauseStates, key: EngineKey) -> Pause | None:
    """Return the pause that holds in *key*; None if it is not paused."""
    return states[key] if key in states else states.get(ALL)


def changed(states: PauseStates, keys: Iterable[EngineKey] | None, pause: Pause | None) -> PauseStates:
    """Return *states* after the pause, or with None the resumption, of *keys*, or with None of every engine."""
    if keys is not None:
        return _pruned(states | dict.fromkeys(keys, pause))
    if pause is None:
        return {}
    own: PauseStates = {key: state for key, state in states.items() if state is not None}
    return _pruned(own | {ALL: pause})


def moved(states: PauseStates, step: float) -> PauseStates:
    """Return *states* by a clock that was set forward by *step* seconds; negative: back."""
    nano = int(step * 1e9)
    return {
        key: state
        if state is None or not state.ends_unix_nano
        else dataclasses.replace(
            state,
            began_unix_nano=state.began_unix_nano + nano,
            ends_unix_nano=state.ends_unix_nano + nano,
        )
        for key, state in states.items()
    }


def ended(
    states: PauseStates, now_unix_nano: int, engines: Iterable[EngineKey]
) -> tuple[PauseStates, set[EngineKey]]:
    """Return *states* without the pauses whose time to live has ended, and the keys of those.

    A front end resumes with the first of its *engines*, as in :func:`with_front_ends`.
    """
    over = {key for key, state in states.items() if state is not None and state.left_nano(now_unix_nano) == 0}
    if not over:
        return states, over
    rest = _pruned({key: state for key, state in states.items() if key not in over})
    active = {key.server for key in engines if key.engine and pause_of(rest, key) is None}
    return {
        key: state for key, state in rest.items() if key.engine or key.server not in active or state is None
    }, over


def with_front_ends(
    selected: Iterable[EngineKey],
    engines: Iterable[EngineKey],
    paused: bool,
    is_paused: Callable[[EngineKey], bool],
) -> set[EngineKey]:
    """Return *selected* with the front ends of their servers; *engines*: all engines.

    A front end serves all engines of its server: it pauses with the last of
    them and resumes with the first.
    """
    keys = set(selected)
    for server in {key.server for key in keys}:
        rest = {key for key in engines if key.server == server and key.engine} - keys
        if not paused or all(is_paused(key) for key in rest):
            keys.add(EngineKey(server, ""))
    return keys


def engines_named(keys: Iterable[EngineKey]) -> str:
    """Return the name of *keys* in the audit log."""
    found = set(keys)
    if ALL in found:
        return "all engines"
    return "engine " + ", ".join(str(key) for key in sorted(found) if key.engine)


def document(pause: Pause, key: EngineKey | None = None) -> str:
    """Return the canonical JSON text of a pause: as audited, and with *key* as stored."""
    fields = dataclasses.asdict(pause) | ({} if key is None else {"key": list(key)})
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_pause(text: str) -> tuple[EngineKey, Pause]:
    """Parse the text of :func:`document` with a key.

    Raises:
        ValueError, KeyError, TypeError: the text is of another version.

    """
    fields = json.loads(text)
    return EngineKey(*fields.pop("key")), Pause(**fields)


def _pruned(states: PauseStates) -> PauseStates:
    """Return *states* without the entries that the one for all engines makes superfluous."""
    default = states.get(ALL)

    def matters(state: Pause | None) -> bool:
        if default is None or state is None:
            return state is not default
        return state.outlasts(default)

    return {key: state for key, state in states.items() if key == ALL or matters(state)}


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
        return pause_of(self._states, key)

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
            states = changed(self._states, keys, order)
            change = audit.Change(
                author=author,
                action="pause" if paused else "resume",
                name=which,
                reason=reason,
                new_manifest=document(order) if order is not None and ttl is not None else "",
            )
            await to_completion(self._write(states, change))

    async def end_due(self, engines: Iterable[EngineKey]) -> None:
        """End the pauses whose time to live has ended; *engines*: all engines.

        They end also if that cannot be written; the audit log gets the entry once it can.
        """
        async with self._turn:
            self._follow_clock()
            states, keys = ended(self._states, self._now_unix_nano, engines)
            if keys:
                name = engines_named(keys)
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
            self._states = moved(self._states, step)

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
    return [(KIND, document(order, key)) for key, order in states.items() if order is not None]


def _read(texts: Iterable[str]) -> dict[EngineKey, Pause]:
    """Return the pauses by key; skip those of another version, which last until a resume."""
    found = {}
    for text in texts:
        try:
            key, order = read_pause(text)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("a pause of another version lasts until 'agentctl resume'", error=repr(error))
            continue
        found[key] = order
    return found
