"""What a pause is, and how pauses of engines and of all engines combine. Pure.

An engine's own entry takes precedence over the one for all engines, which includes unknown engines. An own pause is kept
only if it outlasts the pause of all engines, so that the end of one never ends the other.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from penstock.agent.model import EngineKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
