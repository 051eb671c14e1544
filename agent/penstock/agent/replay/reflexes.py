"""The reflexes of a replayed engine: what it measures, when they act, and what that saves or costs.

The rules are the engine's own (:class:`penstock.rules.EngineReflexes`), and know only what the engine would have measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.replay.counts import ReflexCounts
from penstock.proto import constants as c
from penstock.rules import (
    RECOMPUTE_STORM,
    SLOW_PEER,
    START_WAIT,
    EngineReflexes,
    Outcome,
    RecomputeStormRule,
    SlowPeerRule,
    StartWaitRule,
)

if TYPE_CHECKING:
    from penstock.agent.replay.recorded import RecordedLoad, RecordedPrefill
    from penstock.rules import ReflexRules, WaitLimit

REFLEXES: Final = (START_WAIT, SLOW_PEER, RECOMPUTE_STORM)


def acting(rules: ReflexRules) -> ReflexRules:
    """Return all reflexes, acting: as *rules* has them, with their defaults where it does not."""
    return replace(
        rules,
        start_wait=replace(rules.start_wait or StartWaitRule(), enforce=True),
        slow_peer=replace(rules.slow_peer or SlowPeerRule(), enforce=True),
        recompute_storm=rules.recompute_storm or RecomputeStormRule(),
    )


class _Computed(NamedTuple):
    """A load that is computed instead: after *waited_ns*, in *compute_ns*."""

    load: RecordedLoad
    waited_ns: int
    compute_ns: int


class ReplayedReflexes:
    """The reflexes of one replay. Times are the events' own.

    Attributes:
        counts: of each reflex that there is, by its field.

    """

    def __init__(self, rules: ReflexRules) -> None:
        self._engine = EngineReflexes()
        self._engine.rules = rules
        self._queued = False
        there = zip(REFLEXES, (rules.start_wait, rules.slow_peer, rules.recompute_storm), strict=True)
        self.counts = {
            field: ReflexCounts(acts=getattr(rule, "enforce", False))
            for field, rule in there
            if rule is not None
        }

    def on_prefill(self, prefill: RecordedPrefill) -> None:
        """Measure what a request showed at its first token."""
        self._queued = True
        self._engine.on_queued(prefill.queued_ns, prefill.at_ns)
        self._engine.on_computed(prefill.tokens, prefill.took_ns, prefill.at_ns)

    def on_loaded(self, load: RecordedLoad, now: int) -> None:
        """Measure a load that was waited for until *now*, to its end or until it was given up."""
        if _is_waited(load) and load.tokens:
            self._engine.on_loaded(load.peer, load.tokens, now - load.started_ns, now)

    def refuse(self, load: RecordedLoad, now: int) -> str:
        """Return why *load* is not made and its tokens are computed; empty if it is."""
        counts = self.counts.get(SLOW_PEER)
        if counts is None or not _is_asked(load):
            return ""
        counts.asked += 1
        tokens = load.tokens or 0
        why = self._engine.slow_peer(load.peer, tokens, now)
        computing = self._engine.compute_time(tokens, now)
        if computing is None:
            counts.price_unknown += 1
        elif self._engine.load_time(load.peer, tokens, now) is None:
            counts.peer_unknown += 1
        if not why or computing is None or not self._may_act(counts, now):
            return ""
        _count(counts, _Computed(load, 0, computing))
        return why if counts.acts else ""

    def wait_limit(self, load: RecordedLoad, now: int) -> WaitLimit | None:
        """Return how long *load*, which begins, may take to begin; None for any time."""
        counts = self.counts.get(START_WAIT)
        if counts is None or not _is_asked(load):
            return None
        counts.asked += 1
        limit = self._engine.wait_limit(load.tokens or 0, now)
        counts.price_unknown += limit is None
        return limit

    def give_up(self, load: RecordedLoad, limit: WaitLimit, now: int) -> str:
        """Return why *load*, which has not begun within *limit*, is given up; empty if it is not."""
        counts = self.counts[START_WAIT]
        if not self._may_act(counts, now):
            return ""
        _count(counts, _Computed(load, now - load.started_ns, limit.compute_ns))
        return limit.reason(now - load.started_ns) if counts.acts else ""

    def on_failed(self, field: str) -> None:
        """Count a load that fails by the reflex of *field* and did not."""
        self.counts[field].failed += 1

    def on_recomputed(self, tokens: int, now: int, *, by_reflex: bool) -> None:
        """Note that *tokens* are computed again; a storm would have failed them, if it may do so."""
        counts = self.counts.get(RECOMPUTE_STORM)
        if counts is not None and not by_reflex:
            counts.asked += 1
            counts.price_unknown += not self._queued
            if self._engine.storm(tokens, now) and self._may_act(counts, now):
                counts.times += 1
                counts.failed += 1
                counts.tokens += tokens
        self._engine.on_recomputed(tokens, now)

    def _may_act(self, counts: ReflexCounts, now: int) -> bool:
        may = self._engine.may_act(now)
        counts.limited += not may
        return may


def _is_waited(load: RecordedLoad) -> bool:
    return load.channel == c.CHANNEL_KV and bool(load.peer) and load.ended_ns > load.started_ns


def _is_asked(load: RecordedLoad) -> bool:
    """Return whether a reflex would have been asked about *load*: one that waits, or that a reflex left out."""
    left_out = load.failed is not None and load.failed.is_left_out
    return (_is_waited(load) or left_out) and bool(load.tokens)


def _count(counts: ReflexCounts, computed: _Computed) -> None:
    counts.times += 1
    load, would = computed.load, computed.waited_ns + computed.compute_ns
    was = load.ended_ns - load.started_ns
    if load.failed is None:
        counts.tokens += load.tokens or 0
    elif load.failed.outcome is Outcome.FAILED:
        counts.rescued += 1
        return
    else:
        was += computed.compute_ns
    counts.saved_ns += max(0, was - would)
    counts.lost_ns += max(0, would - was)
