"""The time to first token of some requests, gate by gate. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import GATES
from penstock.agent.diagnosis.facts import words
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.agent.diagnosis.facts.records import Closed
    from penstock.agent.diagnosis.facts.windows import Window


class FirstTokens(NamedTuple):
    """The requests that had a first token and whose engine reports the gates.

    Attributes:
        number: of requests.
        median: of their time to first token, seconds.
        gates: the mean time at each gate, seconds, in the order of ``GATES``.

    """

    number: int
    median: float
    gates: tuple[float, ...]

    @classmethod
    def of(cls, rows: Iterable[Closed]) -> FirstTokens:
        """Return those of *rows*."""
        times = [each.gates for each in rows if each.gates is not None and each.gates.first_token]
        if not times:
            return cls(0, 0.0, (0.0,) * len(GATES))
        columns = zip(*(each.nano for each in times), strict=True)
        means = tuple(sum(column) / len(times) / NANOS for column in columns)
        return cls(len(times), words.quantile([each.total_nano / NANOS for each in times], 0.5), means)

    def words(self) -> str:
        """Return ``the median time to first token is 1.2s, on average 900ms at transfer, 100ms at queue``."""
        if not self.number:
            return "no first token"
        named = sorted(zip(self.gates, GATES, strict=True), key=lambda item: (-item[0], item[1]))
        parts = [
            f"{words.span(seconds)} at {gate.replace('_', ' ')}"
            for seconds, gate in named[:3]
            if seconds >= _LEAST
        ]
        at = f", on average {', '.join(parts)}" if parts else ""
        return f"the median time to first token is {words.span(self.median)}{at}"


class ClosedByPeer(NamedTuple):
    """The closed requests of a window by the peer that each read from: found once and not for each peer."""

    rows: Mapping[str, Sequence[Closed]]

    @classmethod
    def of(cls, window: Window) -> ClosedByPeer:
        """Return those of *window*."""
        rows: dict[str, list[Closed]] = defaultdict(list)
        for each in window.closed:
            rows[each.peer].append(each)
        return cls(rows)

    def first_tokens(self, peers: Iterable[str]) -> FirstTokens:
        """Return the time to first token of the requests that read from one of *peers*."""
        return FirstTokens.of(each for peer in sorted(set(peers)) for each in self.rows.get(peer, ()))


# Less is not worth a word, seconds.
_LEAST = 0.001
