"""What the fleet must have in the end, from the writes that were confirmed and from what the guides say. No code of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Written(NamedTuple):
    """A confirmed write: the revision that the server gave it, the number of the change, the spec; None for a deletion."""

    revision: int
    number: int
    spec: Mapping[str, Any] | None


@dataclass
class Ledger:
    """The newest confirmed write of each name at one place."""

    newest: dict[str, Written] = field(default_factory=dict)

    def note(self, name: str, written: Written) -> None:
        """Take a confirmed write, in whatever order they are confirmed."""
        if name not in self.newest or written.revision > self.newest[name].revision:
            self.newest[name] = written

    def present(self) -> dict[str, Written]:
        """Return what is there."""
        return {name: each for name, each in self.newest.items() if each.spec is not None}


def owners(places: Mapping[str, Ledger]) -> dict[str, str]:
    """Return the place of each policy; of two places that have one name the first in the order of *places* holds."""
    found: dict[str, str] = {}
    for place, ledger in places.items():
        for name in ledger.present():
            found.setdefault(name, place)
    return found


def effective(places: Sequence[Ledger], role: str) -> dict[str, str]:
    """Return each field of an engine of *role*: of the highest priority that sets it, ties to the name that sorts first."""
    best: dict[str, tuple[int, str, str]] = {}
    held: set[str] = set()
    for ledger in places:
        for name, written in ledger.present().items():
            if name in held:
                continue
            held.add(name)
            spec = dict(written.spec or {})
            selector, priority = spec.pop("selector", {}), spec.pop("priority", 100)
            if selector.get("matchLabels", {}).get("role", role) != role:
                continue
            for section, values in spec.items():
                for key, value in values.items():
                    rank = (-priority, name, str(value))
                    path = f"{section}.{key}"
                    best[path] = min(best.get(path, rank), rank)
    return {path: value for path, (_, _, value) in best.items()}
