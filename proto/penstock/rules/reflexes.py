"""The reflexes of one engine (``reflexes``): what it does by itself about what it has measured itself.

Three, each in rails. It needs :data:`~penstock.rules.measured_times.MIN_SAMPLES` of each time that it compares; loads older than a
minute and prefills older than an hour count no more, so that each ends by itself; waiting has to be dearer than computing by
a factor; all together act at most so often a minute. What is given up or left out is computed here, so that nothing fails by a reflex.
Times are nanoseconds of one clock, given by the caller. Everything belongs to one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.proto.names import NANOS
from penstock.rules.measured_times import ComputeTimes, LoadTimes
from penstock.rules.policy import (
    RecomputeStormReflex,
    ReflexAction,
    Reflexes,
    SlowPeerReflex,
    StartWaitReflex,
)
from penstock.rules.recompute_storm import RecomputeStorm

if TYPE_CHECKING:
    from penstock.rules.policy import Policy

START_WAIT: Final = "reflexes.startWait"
SLOW_PEER: Final = "reflexes.slowPeer"
RECOMPUTE_STORM: Final = "reflexes.recomputeStorm"

_FACTOR: Final = 2.0
_MIN_WAIT: Final = 0.5
_QUEUE_WAIT: Final = 2.0
_PER_MINUTE: Final = 60
_MINUTE_NS: Final = 60 * NANOS
_MOST_SLOW: Final = 1024


@dataclass(frozen=True, slots=True)
class StartWaitRule:
    """``reflexes.startWait`` in force."""

    enforce: bool = False
    factor: float = _FACTOR
    min_wait_ns: int = round(_MIN_WAIT * NANOS)


@dataclass(frozen=True, slots=True)
class SlowPeerRule:
    """``reflexes.slowPeer`` in force."""

    enforce: bool = False
    factor: float = _FACTOR


@dataclass(frozen=True, slots=True)
class RecomputeStormRule:
    """``reflexes.recomputeStorm`` in force; it never acts."""

    queue_wait_ns: int = round(_QUEUE_WAIT * NANOS)


@dataclass(frozen=True, slots=True)
class ReflexRules:
    """The reflexes in force; None for one that is not there."""

    per_minute: int = _PER_MINUTE
    start_wait: StartWaitRule | None = None
    slow_peer: SlowPeerRule | None = None
    recompute_storm: RecomputeStormRule | None = None

    def __bool__(self) -> bool:
        return any((self.start_wait, self.slow_peer, self.recompute_storm))


NO_REFLEXES: Final = ReflexRules()
ALL_REFLEXES: Final = ReflexRules(
    start_wait=StartWaitRule(enforce=True),
    slow_peer=SlowPeerRule(enforce=True),
    recompute_storm=RecomputeStormRule(),
)
"""With their defaults, and acting."""


def reflex_rules(policy: Policy) -> ReflexRules:
    """Return the reflexes of *policy*; those of policies in mode observe never act."""
    enforced = policy.reflexes or Reflexes()
    observed = (policy.observed.reflexes if policy.observed is not None else None) or Reflexes()
    acts = enforced.start_wait or enforced.slow_peer
    rate = enforced.per_minute or (None if acts else observed.per_minute)
    return ReflexRules(
        per_minute=_PER_MINUTE if rate is None else rate,
        start_wait=_start_wait(enforced.start_wait, observed.start_wait),
        slow_peer=_slow_peer(enforced.slow_peer, observed.slow_peer),
        recompute_storm=_recompute_storm(enforced.recompute_storm or observed.recompute_storm),
    )


def _start_wait(enforced: StartWaitReflex | None, observed: StartWaitReflex | None) -> StartWaitRule | None:
    section = enforced or observed
    if section is None:
        return None
    return StartWaitRule(
        enforce=enforced is not None and enforced.action is ReflexAction.ENFORCE,
        factor=_FACTOR if section.factor is None else section.factor,
        min_wait_ns=round((_MIN_WAIT if section.min_wait is None else section.min_wait) * NANOS),
    )


def _slow_peer(enforced: SlowPeerReflex | None, observed: SlowPeerReflex | None) -> SlowPeerRule | None:
    section = enforced or observed
    if section is None:
        return None
    return SlowPeerRule(
        enforce=enforced is not None and enforced.action is ReflexAction.ENFORCE,
        factor=_FACTOR if section.factor is None else section.factor,
    )


def _recompute_storm(section: RecomputeStormReflex | None) -> RecomputeStormRule | None:
    if section is None:
        return None
    return RecomputeStormRule(round((section.queue_wait or _QUEUE_WAIT) * NANOS))


@dataclass(frozen=True, slots=True)
class WaitLimit:
    """How long a load may take to begin.

    Attributes:
        limit_ns: from the moment at which it is waited for.
        compute_ns: what computing its tokens takes here.

    """

    limit_ns: int
    compute_ns: int
    tokens: int

    def reason(self, waited_ns: int) -> str:
        """Return why a load is given up after *waited_ns*, for a person."""
        return f"{START_WAIT}: {_seconds(waited_ns)} waited for the load to begin, {_computing(self.tokens, self.compute_ns)}"


class EngineReflexes:
    """What one engine has measured, and what it would do about it.

    Attributes:
        rules: in force.

    """

    def __init__(self) -> None:
        self.rules = NO_REFLEXES
        self._computed = ComputeTimes()
        self._loads = LoadTimes()
        self._storm = RecomputeStorm()
        self._slow: dict[str, None] = {}
        self._acts: deque[int] = deque()

    # What is measured

    def on_computed(self, tokens: int, took_ns: int, now: int) -> None:
        """Record that *tokens* of a request were computed in *took_ns*, if :func:`tells_compute_time` says so."""
        self._computed.add(tokens, took_ns, now)

    def on_loaded(self, peer: str, tokens: int, took_ns: int, now: int) -> None:
        """Record that a load of *tokens* from *peer* took *took_ns*, or was given up after it."""
        self._loads.add(peer, tokens, took_ns, now)

    def forget(self, peer: str) -> None:
        """Forget what loads from *peer* took: another engine is behind its address."""
        self._loads.forget(peer)
        self._slow.pop(peer, None)

    def on_queued(self, wait_ns: int, now: int) -> None:
        """Record how long a request waited for room."""
        self._storm.on_queued(wait_ns, now)

    def on_recomputed(self, tokens: int, now: int) -> None:
        """Record that *tokens* of a request are computed again."""
        self._storm.on_recomputed(tokens, now)

    def compute_time(self, tokens: int, now: int) -> int | None:
        """Return what computing *tokens* takes here; None if that is not known."""
        return self._computed.estimate(tokens, now)

    def load_time(self, peer: str, tokens: int, now: int) -> int | None:
        """Return what loading *tokens* from *peer* takes; None if that is not known."""
        return self._loads.estimate(peer, tokens, now)

    # What follows

    def wait_limit(self, tokens: int, now: int) -> WaitLimit | None:
        """Return how long a load of *tokens* that is waited for from now on may take to begin; None for any time."""
        rule = self.rules.start_wait
        computing = None if rule is None else self._computed.estimate(tokens, now)
        if rule is None or computing is None:
            return None
        return WaitLimit(max(round(rule.factor * computing), rule.min_wait_ns), computing, tokens)

    def slow_peer(self, peer: str, tokens: int, now: int) -> str:
        """Return why *tokens* are better computed than loaded from *peer*; empty if they are not.

        A peer that is slow for one request is so for all until a load from it takes no longer than computing.
        """
        rule = self.rules.slow_peer
        if rule is None:
            return ""
        loading, computing = self._loads.estimate(peer, tokens, now), self._computed.estimate(tokens, now)
        if loading is None or computing is None:
            self._slow.pop(peer, None)
            return ""
        if loading <= computing * (1 if peer in self._slow else rule.factor):
            self._slow.pop(peer, None)
            return ""
        if len(self._slow) < _MOST_SLOW:
            self._slow[peer] = None
        return f"{SLOW_PEER}: its loads take {_seconds(loading)} or more, {_computing(tokens, computing)}"

    def storm(self, tokens: int, now: int) -> str:
        """Return why *tokens* are too many to be recomputed now; empty if they are not."""
        rule = self.rules.recompute_storm
        limit = None if rule is None else self._storm.limit(rule.queue_wait_ns, now)
        if rule is None or limit is None or tokens <= limit:
            return ""
        return (
            f"{RECOMPUTE_STORM}: requests queue for more than {_seconds(rule.queue_wait_ns)} while others are"
            f" recomputed; {tokens} tokens lost, at most {limit} would be recomputed"
        )

    def may_act(self, now: int) -> bool:
        """Return whether one of them may act now, and count it."""
        while self._acts and now - self._acts[0] > _MINUTE_NS:
            self._acts.popleft()
        if len(self._acts) >= self.rules.per_minute:
            return False
        self._acts.append(now)
        return True


def _computing(tokens: int, took_ns: int) -> str:
    return f"computing {tokens} tokens takes {_seconds(took_ns)} here"


def _seconds(nano: int) -> str:
    return f"{nano / NANOS:.3g} s"
