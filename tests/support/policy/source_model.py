"""What policy sources bring into force, computed name by name from what decision 0034 and the guides say.

It shares nothing with the agent's merge: no set is merged here, each name is looked up in one source after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BY_HAND = "imperative"
SECOND_LOOK = 10.0


class Brought(NamedTuple):
    """One manifest at its place: a value, or why it brings none: ``refused`` or ``expired``."""

    value: str
    fault: str = ""


class Held(NamedTuple):
    """A policy in force and who owns it."""

    value: str
    owner: str


@dataclass
class _Source:
    """A source since the agent started; *found* is None until a set of it counts."""

    found: Mapping[str, Brought] | None = None
    empty_since: float | None = None


@dataclass
class SourceModel:
    """The policies in force and their owners.

    Attributes:
        held: by name.

    """

    held: dict[str, Held] = field(default_factory=dict)
    _order: tuple[str, ...] = ()
    _sources: dict[str, _Source] = field(default_factory=dict)

    def start(self, order: Sequence[str]) -> None:
        """Start the agent with the sources of *order*; what others brought can be changed by hand from now on."""
        self._order = tuple(order)
        self._sources = {name: _Source() for name in order}
        self.held = {
            name: each if each.owner in self._order else Held(each.value, BY_HAND)
            for name, each in self.held.items()
        }

    def away(self, source: str) -> None:
        """Lose the connection to the place of *source*: a first look at an empty set is forgotten."""
        self._sources[source].empty_since = None

    def too_many(self, source: str) -> None:
        """Refuse a set as a whole: it was not empty, and the last one stays."""
        self._sources[source].empty_since = None

    def bring(
        self, source: str, found: Mapping[str, Brought], now: float, *, look_twice: bool = True
    ) -> bool:
        """Take a set of *source* and return whether it counts: an empty one after a full one only the second time."""
        state = self._sources[source]
        if found or not look_twice or not self._was_full(source):
            state.empty_since = None
        elif state.empty_since is None or now - state.empty_since < SECOND_LOOK:
            state.empty_since = now if state.empty_since is None else state.empty_since
            return False
        state.empty_since = None
        state.found = dict(found)
        names = self.held.keys() | {name for each in self._sources.values() for name in each.found or {}}
        self.held = {name: policy for name in names if (policy := self._in_force(name)) is not None}
        return True

    def refused(self, source: str) -> set[str]:
        """Return the names that *source* brings and that are not in force from there."""
        found = self._sources[source].found or {}
        return {
            name
            for name, each in found.items()
            if each.fault == "refused" or (not each.fault and self.held[name].owner != source)
        }

    def set_by_hand(self, name: str, value: str) -> bool:
        """Set a policy by hand and return whether that is allowed."""
        allowed = name not in self.held or self.held[name].owner == BY_HAND
        if allowed:
            self.held[name] = Held(value, BY_HAND)
        return allowed

    def owned_by(self, source: str) -> set[str]:
        """Return the names in force from *source*."""
        return {name for name, each in self.held.items() if each.owner == source}

    def _was_full(self, source: str) -> bool:
        found = self._sources[source].found or {}
        return bool(self.owned_by(source)) or any(each.fault != "expired" for each in found.values())

    def _in_force(self, name: str) -> Held | None:
        before = self.held.get(name)
        for source in self._order:
            found = self._sources[source].found
            last = before if before is not None and before.owner == source else None
            each = None if found is None else found.get(name)
            if found is None or (each is not None and each.fault == "refused"):
                # Not heard of since the start, or a mistake: the last good one stays.
                if last is not None:
                    return last
            elif each is not None and not each.fault:
                return Held(each.value, source)
        return before if before is not None and before.owner == BY_HAND else None
