"""Entries that an engine lost: in the window, or in an earlier time of its process. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.diagnosis.facts import words
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.diagnosis.facts.windows import Facts
    from penstock.agent.model import EngineKey


class EarlierLoss(NamedTuple):
    """What the processes of one engine lost that began before the window.

    Attributes:
        number: of entries.
        began: when the oldest of these processes did, nanoseconds.

    """

    number: int
    began: int


class LostEntries(NamedTuple):
    """Engines with entries that are missing in the log.

    Attributes:
        now: those whose process began in the window, or whose account is not whole.
        earlier: those whose process began in the time that the window is compared with: when it lost them is not known.
        older: those whose process began before that, of which less is known; it says nothing about the two times.
        number: how many entries those of *now* count as lost.

    """

    now: tuple[EngineKey, ...]
    earlier: Mapping[EngineKey, EarlierLoss]
    older: tuple[EngineKey, ...]
    number: int

    @classmethod
    def of(cls, facts: Facts) -> LostEntries:
        """Return those of *facts*."""
        edge = facts.now - int(facts.present.seconds * NANOS)
        compared = edge - int(facts.before.seconds * NANOS)
        now, older, number = set(), set(), 0
        earlier: defaultdict[EngineKey, list[EarlierLoss]] = defaultdict(list)
        for engine in facts.engines:
            key = words.key_of(engine.key)
            for source in engine.sources:
                began = source.hello.start_time_unix_nano
                if source.unaccounted_entries or (source.lost_entries and began >= edge):
                    now.add(key)
                    number += source.lost_entries
                elif source.lost_entries and began < compared:
                    older.add(key)
                elif source.lost_entries:
                    earlier[key].append(EarlierLoss(source.lost_entries, began))
        sums = {
            key: EarlierLoss(sum(each.number for each in losses), min(each.began for each in losses))
            for key, losses in sorted(earlier.items())
            if key not in now
        }
        return cls(words.keys_of(now), sums, words.keys_of(older - now - sums.keys()), number)
