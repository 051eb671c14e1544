"""Entries that an engine lost: in the window, or in an earlier time of its process. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.diagnosis.facts import words
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.agent.diagnosis.facts.windows import Facts
    from penstock.agent.model import EngineKey


class LostEntries(NamedTuple):
    """Engines with entries that are missing in the log.

    Attributes:
        now: those whose process began in the window, or whose account is not whole.
        earlier: those whose process counts since a time before the window: when it lost them is not known.
        number: how many entries those of *now* count as lost.

    """

    now: tuple[EngineKey, ...]
    earlier: tuple[EngineKey, ...]
    number: int

    @classmethod
    def of(cls, facts: Facts) -> LostEntries:
        """Return those of *facts*."""
        edge = facts.now - int(facts.present.seconds * NANOS)
        now, earlier, number = set(), set(), 0
        for engine in facts.engines:
            key = words.key_of(engine.key)
            for source in engine.sources:
                is_new = source.hello.start_time_unix_nano >= edge
                if source.unaccounted_entries or (source.lost_entries and is_new):
                    now.add(key)
                    number += source.lost_entries
                elif source.lost_entries:
                    earlier.add(key)
        return cls(words.keys_of(now), words.keys_of(earlier - now), number)
