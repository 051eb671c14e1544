"""The kill switch: paused engines, kept over restarts.

An engine's own entry takes precedence over the one for all engines, which includes unknown engines.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.agent.aio import Listeners, to_completion
from penstock.agent.model import EngineKey
from penstock.agent.policy.store import audit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.policy.store import Clock, PolicyDatabase

_ALL = EngineKey("*", "*")


class Pauses:
    """The paused engines. Reads are from memory."""

    def __init__(self, database: PolicyDatabase, *, clock: Clock = time.time) -> None:
        """Load the state; *clock* gives seconds since the epoch."""
        self._database = database
        self._clock = clock
        self._listeners = Listeners()
        self._turn = asyncio.Lock()
        with database.reading() as connection:
            rows = connection.execute("SELECT server, engine, paused FROM pause").fetchall()
        self._states = {EngineKey(server, engine): bool(paused) for server, engine, paused in rows}

    def is_paused(self, key: EngineKey) -> bool:
        """Return whether *key* is paused; a front end's key has an empty engine."""
        return self._states.get(key, self._states.get(_ALL, False))

    async def set(
        self, keys: Iterable[EngineKey] | None, paused: bool, *, author: str, which: str, reason: str = ""
    ) -> None:
        """Pause or resume *keys*, or every engine, present and future, with None.

        *which* describes the engines for the audit log.

        Raises:
            StateError: the change could not be written; nothing changed.

        """
        async with self._turn:
            states = _changed(self._states, keys, paused)
            change = audit.Change(
                author=author, action="pause" if paused else "resume", name=which, reason=reason
            )
            await to_completion(self._write(states, change))

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* on the loop after every change; return a function that unsubscribes."""
        return self._listeners.add(callback)

    async def _write(self, states: dict[EngineKey, bool], change: audit.Change) -> None:
        def write() -> None:
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM pause")
                connection.executemany(
                    "INSERT INTO pause VALUES (?, ?, ?)",
                    [(key.server, key.engine, int(paused)) for key, paused in states.items()],
                )
                audit.append(connection, change, int(self._clock() * 1e9))

        await asyncio.to_thread(write)
        self._states = states
        self._listeners.call()


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


def _changed(
    states: dict[EngineKey, bool], keys: Iterable[EngineKey] | None, paused: bool
) -> dict[EngineKey, bool]:
    if keys is None:
        return {_ALL: True} if paused else {}
    default = states.get(_ALL, False)
    merged = states | dict.fromkeys(keys, paused)
    return {key: state for key, state in merged.items() if key == _ALL or state != default}
