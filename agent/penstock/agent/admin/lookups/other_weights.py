"""Which engines have read from peers that had loaded other weights, now and since the agent began. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.agent.model import EngineKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.agent.traces.spans import RequestFacts

Place = tuple[EngineKey, str]
"""A reader, and the address of the peer that it reads from."""

# Above it, what ended first is forgotten.
_MAX_ENDED: Final = 1_024


@dataclass(frozen=True, slots=True)
class DifferentWeights:
    """A time in which a reader and its peer had loaded different weights.

    Attributes:
        since: by the reader's clock, nanoseconds: the younger of the two processes began.
        until: likewise; 0 while they differ.
        peer_key: the engine behind the address.
        evidence: a sentence without its full stop.
        processes: when the two began, each by its own clock, nanoseconds.

    """

    since: int
    peer_key: EngineKey
    evidence: str
    processes: tuple[int, ...]
    until: int = 0

    def includes(self, moment: int) -> bool:
        """Return whether *moment* is in it."""
        return moment >= self.since and not 0 < self.until <= moment


class OtherWeights:
    """The engines whose peers have, or had, loaded other weights than they."""

    def __init__(self, found: Mapping[Place, Sequence[DifferentWeights]]) -> None:
        self._found = found

    def __bool__(self) -> bool:
        return bool(self._found)

    def may_read(self, key: EngineKey, address: str) -> bool:
        """Return whether a request of engine *key* with the peer *address* is worth a look."""
        return (key, address) in self._found

    def peer_of(self, facts: RequestFacts) -> EngineKey | None:
        """Return the engine that had other weights and that a request had as its peer."""
        found = self._of(facts)
        return found.peer_key if found is not None else None

    def evidence(self, facts: RequestFacts) -> str:
        """Return a sentence without its full stop about the weights of the peer of a request; empty where they did not differ."""
        found = self._of(facts)
        return found.evidence if found is not None else ""

    def _of(self, facts: RequestFacts) -> DifferentWeights | None:
        closing = facts.closing
        if closing is None:
            return None
        spans = self._found.get((facts.source.key, closing.peer.address), ())
        return next((each for each in spans if each.includes(facts.start_unix_nano)), None)


class WeightsMemory:
    """Keeps what is over: wrong answers stay wrong when the pod that caused them has been replaced.

    It lasts as long as the agent, and goes into its bundles. Of one event loop.
    """

    def __init__(self, ended: Iterable[tuple[Place, DifferentWeights]] = ()) -> None:
        self._ended = deque(ended, _MAX_ENDED)
        self._lasting: dict[Place, DifferentWeights] = {}

    @property
    def ended(self) -> Sequence[tuple[Place, DifferentWeights]]:
        """What is over, the oldest first; 1,024 at most."""
        return tuple(self._ended)

    def update(
        self, found: Mapping[Place, DifferentWeights], end: Callable[[Place, DifferentWeights], int]
    ) -> OtherWeights:
        """Take in all that differ now, and return them with those that are over.

        Args:
            found: all that differ now.
            end: returns until when one lasted that differs no more, nanoseconds of the reader's clock.

        """
        back = {(place, each.processes) for place, each in found.items()}
        over = [
            (place, replace(each, until=end(place, each)))
            for place, each in self._lasting.items()
            if (place, each.processes) not in back
        ]
        # A peer that was only not seen for a moment differs still.
        kept = [(place, each) for place, each in self._ended if (place, each.processes) not in back]
        self._ended = deque((*kept, *over), _MAX_ENDED)
        self._lasting = dict(found)
        spans: dict[Place, list[DifferentWeights]] = {place: [each] for place, each in found.items()}
        for place, each in self._ended:
            spans.setdefault(place, []).append(each)
        return OtherWeights(spans)
