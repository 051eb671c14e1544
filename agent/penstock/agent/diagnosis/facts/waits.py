"""What requests wait for: how long they usually do, which waits are longer, and at which gate a first token waited. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent import limits
from penstock.agent.batch import GATES
from penstock.agent.diagnosis.facts import words
from penstock.agent.diagnosis.facts.words import key_of, quantile
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.agent.diagnosis.facts.records import Closed, Wait
    from penstock.agent.diagnosis.facts.windows import Facts, Window
    from penstock.agent.model import EngineKey
    from penstock.proto.v1.snapshot_pb2 import Deferred

# The usual wait is the 90th percentile of those in the log; of those that the agent keeps, the 99th.
_RATIO = 0.9
_KEPT_SHARE = 0.01

_Place = tuple["EngineKey", int, str]
# Less is not worth a word, seconds.
_LEAST_SECONDS = 0.001


class UsualWaits:
    """How long requests usually wait, by engine, reason and peer.

    The 90th percentile of the waits before the window for that peer; else the 99th of its hour before, which the agent
    keeps of each peer however full the log is; else that of the waits for all peers.
    """

    def __init__(self, facts: Facts) -> None:
        """Read the time before the window of *facts*."""
        found: dict[_Place, list[float]] = defaultdict(list)
        for wait in facts.before.waits:
            for peer in {wait.peer, ""}:
                found[wait.key, wait.reason, peer].append(wait.seconds)
        self._usual = {
            place: quantile(seconds, _RATIO)
            for place, seconds in found.items()
            if len(seconds) >= limits.USUAL_LOGGED_COUNT
        }
        self._kept = {
            (key_of(each.key), each.peer.address): each.waits.hour_before.p99_seconds
            for each in facts.peers
            if each.waits.hour_before.count >= limits.USUAL_COUNT
        }
        self._now = facts.now

    def of(self, key: EngineKey, reason: int, peer: str) -> float | None:
        """Return the usual wait in seconds; None if too few are known."""
        own = self._usual.get((key, reason, peer))
        if own is None:
            own = self._kept.get((key, peer))
        return self._usual.get((key, reason, "")) if own is None else own

    def slow(self, wait: Wait) -> tuple[float, float] | None:
        """Return the usual wait and by how much *wait* was longer, seconds; None if it was not slow."""
        usual = self.of(wait.key, wait.reason, wait.peer)
        if usual is None:
            return (0.0, wait.seconds) if wait.seconds >= limits.SLOW_ANYWAY_SECONDS else None
        slow = limits.is_slower(wait.seconds, usual, limits.SLOW_WAIT_SECONDS)
        return (usual, wait.seconds - usual) if slow else None

    def hanging(self, key: EngineKey, row: Deferred) -> tuple[float, float] | None:
        """Return for how long the oldest of *row* waits, and the usual wait, seconds; None if it does not hang."""
        begun = row.oldest_start_time_unix_nano
        age = (self._now - begun) / NANOS
        usual = self.of(key, row.reason, row.peer.address) or 0.0
        return (
            (age, usual)
            if row.count and begun and age > max(limits.HANGS_SECONDS, limits.HANGS_TIMES * usual)
            else None
        )


class UsualShares:
    """Which share of the waits for a peer took longer than usual in the time before: where they scatter, some always do."""

    def __init__(self, facts: Facts, usual: UsualWaits, channels: Mapping[int, int]) -> None:
        """Read the time before the window of *facts*; *channels* are by reason of a wait."""
        self._waits: dict[tuple[int, str], list[bool]] = defaultdict(list)
        self._slow: dict[tuple[int, str], list[int]] = defaultdict(list)
        for wait in facts.before.waits:
            channel = channels.get(wait.reason)
            if channel is None:
                continue
            slow = usual.slow(wait) is not None
            if slow:
                self._slow[channel, wait.peer].append(wait.time)
            for peer in {wait.peer, ""}:
                self._waits[channel, peer].append(slow)
        self._kept = {
            each.peer.address for each in facts.peers if each.waits.hour_before.count >= limits.USUAL_COUNT
        }

    def slow(self, channel: int, peer: str) -> Sequence[int]:
        """Return when waits for *peer* ended that took longer than usual, nanoseconds."""
        return self._slow.get((channel, peer), ())

    def of(self, channel: int, peer: str) -> float | None:
        """Return the share for *peer*, else for all peers; None if too few waits are known."""
        own, everyone = (self._waits.get((channel, name), []) for name in (peer, ""))
        if len(own) >= limits.USUAL_LOGGED_COUNT:
            return sum(own) / len(own)
        if peer in self._kept:
            return _KEPT_SHARE
        return sum(everyone) / len(everyone) if len(everyone) >= limits.USUAL_LOGGED_COUNT else None


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
            if seconds >= _LEAST_SECONDS
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
