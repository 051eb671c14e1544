"""The replay of one engine's recorded loads under another policy; the clock is the events' own.

Each load begins when it was recorded to begin, asks the quarantine, and ends when it was recorded to end or when a
deadline of the policy ends it. The budget and the circuit breakers are the engine's own code (:mod:`penstock.rules`),
empty at the start of the window.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.replay.counts import Note, QuarantineTimes, Replayed
from penstock.agent.replay.reflexes import ReplayedReflexes
from penstock.proto import constants as c
from penstock.rules import (
    REFLEX_TRIGGERS,
    SLOW_PEER,
    START_WAIT,
    BreakerState,
    Budgets,
    DeadlineLimits,
    EcLoss,
    KvLoss,
    Outcome,
    PeerFailure,
    Quarantine,
    QuarantineOrder,
    RecomputeBudget,
    Rules,
    Trigger,
    decide_ec,
    decide_kv,
    reflex_rules,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.replay.counts import Counts
    from penstock.agent.replay.recorded import RecordedChange, RecordedLoad, RecordedLoads
    from penstock.rules import Change, Decision, Policy, ReflexRules, WaitLimit

_INCONCLUSIVE: Final = PeerFailure(c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER)


@dataclass(frozen=True, slots=True)
class OwnOutcomes:
    """What happens where no policy decides: vLLM's ``kv_load_failure_policy``, and the EC connector's default; None if not known."""

    kv: Outcome | None = None
    ec: Outcome | None = None


def replay(
    recorded: RecordedLoads,
    policy: Policy,
    own: OwnOutcomes,
    end_ns: int,
    reflexes: ReflexRules | None = None,
) -> Replayed:
    """Return what was recorded until *end_ns*, and what would have been if *policy* had been in force all the time.

    *reflexes* instead of the policy's own.
    """
    rules = reflex_rules(policy) if reflexes is None else reflexes
    return _Replay(recorded, policy, own, rules).run(end_ns)


_REFLEX_FIELDS: Final = {Trigger.START_WAIT: START_WAIT, Trigger.SLOW_PEER: SLOW_PEER}


class _OpenLoad(NamedTuple):
    """A load that was begun: when a deadline is over, and when it ends if no reflex ends it."""

    load: RecordedLoad
    probe: int
    due: int | None
    ends: int


class _Replay:
    def __init__(self, recorded: RecordedLoads, policy: Policy, own: OwnOutcomes, rules: ReflexRules) -> None:
        self._reflexes = ReplayedReflexes(rules)
        self._recorded = recorded
        self._policy = policy
        self._own = _inferred(recorded, own)
        self._now = recorded.loads[0].started_ns if recorded.loads else 0
        self._limits = DeadlineLimits.from_policy(policy.deferral)
        self._budgets = Budgets(RecomputeBudget(lambda: self._now), RecomputeBudget(lambda: self._now))
        self._budgets.on_policy_change(policy)
        self._times = QuarantineTimes()
        self._quarantine = Quarantine(self._on_change)
        section = policy.peer_quarantine
        self._quarantine.set_rules(None if section is None else Rules.from_policy(section), self._now)
        self._orders: dict[str, QuarantineOrder] = {}
        self._result = Replayed(notes=recorded.unusable.copy())
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def run(self, end_ns: int) -> Replayed:
        """Run all loads in the order of time; quarantines that go on then count until *end_ns*."""
        was = QuarantineTimes()
        for change in self._recorded.changes:
            was.on_change(change.peer, is_open=change.is_open, now_ns=change.at_ns)
            if change.by_order:
                self._at(change.at_ns, lambda change=change: self._order(change))  # type: ignore[misc]
        for prefill in self._recorded.prefills:
            self._at(prefill.at_ns, lambda prefill=prefill: self._reflexes.on_prefill(prefill))  # type: ignore[misc]
        for load in self._recorded.loads:
            _count_recorded(self._result.was, load)
            self._at(load.started_ns, lambda load=load: self._begin(load))  # type: ignore[misc]
        while self._queue:
            self._now, _, happen = heapq.heappop(self._queue)
            happen()
        was.end(end_ns)
        self._times.end(end_ns)
        self._result.reflexes = self._reflexes.counts
        self._result.peers_was, self._result.peers_would = was.by_peer, self._times.by_peer
        return self._result

    def _at(self, time_ns: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(time_ns, self._now), next(self._numbers), happen))

    def _on_change(self, change: Change) -> None:
        status = change.status
        self._times.on_change(status.peer, is_open=status.state is BreakerState.OPEN, now_ns=self._now)

    def _order(self, change: RecordedChange) -> None:
        self._orders.pop(change.peer, None)
        if change.is_open:
            name = f"{change.peer}@{change.at_ns}"
            self._orders[change.peer] = QuarantineOrder(name, change.peer, quarantined=True)
        self._quarantine.set_orders(self._orders.values(), self._now)

    def _begin(self, load: RecordedLoad) -> None:
        counts, notes, failed = self._result.would, self._result.notes, load.failed
        counts.loads += 1
        if _is_spoiled(load):
            notes[Note.COLLATERAL] += 1
            self._decide(load, Trigger.FAILURE)
            return
        admit = self._quarantine.admit(load.peer, load.engine_id, self._now, channel=load.channel)
        if not admit.remote:
            counts.not_tried += 1
            self._note(Note.SUCCEEDED, failed is None)
            self._decide(load, Trigger.QUARANTINE)
            return
        slow = self._reflexes.refuse(load, self._now)
        if slow:
            self._note(Note.SUCCEEDED, failed is None)
            self._note(Note.REFLEX, failed is not None and failed.is_left_out)
            self._decide(load, Trigger.SLOW_PEER, slow)
            return
        if failed is not None and failed.is_left_out:
            self._unknown(Note.GIVEN_UP)
            return
        due = self._due(load)
        ends = load.ended_ns
        if due is not None and (_was_cut(load) or due < ends):
            ends = due
        open_load = _OpenLoad(load, admit.probe, due, ends)
        limit = self._reflexes.wait_limit(load, self._now)
        gives_up = self._gives_up(open_load, limit)
        if limit is not None and gives_up is not None:
            self._at(gives_up, lambda: self._give_up(open_load, limit))
        else:
            self._at(ends, lambda: self._end(open_load))

    def _gives_up(self, open_load: _OpenLoad, limit: WaitLimit | None) -> int | None:
        """Return when a reflex gives a load up that has not begun by then; None for never."""
        if limit is None:
            return None
        load, at = open_load.load, open_load.load.started_ns + limit.limit_ns
        # One that was cut is assumed to wait for longer, as for a later deadline.
        is_open = at < open_load.ends or (open_load.due is None and _was_cut(load))
        return at if is_open and not 0 < load.transfer_ns <= at else None

    def _give_up(self, open_load: _OpenLoad, limit: WaitLimit) -> None:
        load = open_load.load
        why = self._reflexes.give_up(load, limit, self._now)
        if not why:
            self._at(open_load.ends, lambda: self._end(open_load))
            return
        self._result.would.waited_ns += self._now - load.started_ns
        self._reflexes.on_loaded(load, self._now)
        self._report(load, open_load.probe, _INCONCLUSIVE)
        self._note(Note.SUCCEEDED, load.failed is None)
        self._note(Note.REFLEX, load.failed is not None and load.failed.trigger is Trigger.START_WAIT)
        self._decide(load, Trigger.START_WAIT, why)

    def _due(self, load: RecordedLoad) -> int | None:
        """Return when the first deadline is over; None for never."""
        start, transfer = self._limits.max_start_wait_ns, self._limits.max_transfer_wait_ns
        if start is not None and (not load.transfer_ns or load.transfer_ns - load.started_ns > start):
            return load.started_ns + start
        return load.transfer_ns + transfer if transfer is not None and load.transfer_ns else None

    def _end(self, open_load: _OpenLoad) -> None:
        load, probe, due, _ = open_load
        failed = load.failed
        self._result.would.waited_ns += self._now - load.started_ns
        was_cut = _was_cut(load)
        self._note(Note.LONGER, was_cut and due is not None and due > load.ended_ns)
        if due is not None and (due < load.ended_ns or was_cut):
            self._result.would.waits_cut += 1
            self._report(load, probe, PeerFailure(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT))
            self._note(Note.SUCCEEDED, failed is None)
            # The cause of the failure is another one then; what was recorded of its transfer holds.
            self._note(Note.IN_FLIGHT, failed is None and 0 < load.transfer_ns < self._now)
            self._decide(load, Trigger.DEADLINE)
        elif failed is None:
            self._reflexes.on_loaded(load, self._now)
            self._report(load, probe, None)
            self._result.would.loaded += 1
        elif was_cut:
            self._report(load, probe, _INCONCLUSIVE)
            self._unknown(Note.ENDLESS if failed.trigger is Trigger.DEADLINE else Note.GIVEN_UP)
        else:
            self._note(Note.TRIED, failed.trigger is Trigger.QUARANTINE)
            self._report(load, probe, PeerFailure(failed.mode, failed.error_type, failed.rehearsal))
            self._decide(load, Trigger.FAILURE)

    def _report(self, load: RecordedLoad, probe: int, failure: PeerFailure | None) -> None:
        if load.peer:
            self._quarantine.report(
                load.peer, load.engine_id, failure, self._now, probe=probe, channel=load.channel
            )

    def _decide(self, load: RecordedLoad, trigger: Trigger, reflex: str = "") -> None:
        """Decide by the policy, or by a reflex for its reason, and count it."""
        counts = self._result.would
        if load.channel == c.CHANNEL_EC:
            decided, asks_own = self._decide_ec(load, trigger), self._own.ec is None
        else:
            if load.tokens is None:
                self._unknown(Note.TOKENS)
                return
            decided, asks_own = self._decide_kv(load, trigger, load.tokens, reflex), self._own.kv is None
        failed = load.failed
        if asks_own and not decided.field and (failed is None or failed.local_media):
            self._unknown(Note.OWN)
            return
        if decided.outcome is Outcome.FAILED or (failed is not None and failed.obstacle):
            counts.failed += 1
            if trigger in REFLEX_TRIGGERS and (failed is None or failed.outcome is Outcome.RECOMPUTED):
                self._reflexes.on_failed(_REFLEX_FIELDS[trigger])
            return
        if load.channel == c.CHANNEL_KV:
            self._reflexes.on_recomputed(load.tokens or 0, self._now, by_reflex=trigger in REFLEX_TRIGGERS)
        counts.by_reflex += trigger in REFLEX_TRIGGERS
        counts.recomputed += 1
        counts.tokens_recomputed += load.tokens or 0
        counts.items_recomputed += failed.items if failed is not None else int(load.channel == c.CHANNEL_EC)

    def _decide_kv(self, load: RecordedLoad, trigger: Trigger, tokens: int, reflex: str) -> Decision:
        exported = load.failed is not None and load.failed.exported
        return decide_kv(
            KvLoss(tokens, exported, trigger, reflex),
            vllm=self._own.kv or Outcome.FAILED,
            policy=self._policy,
            observed=None,
            budgets=self._budgets,
        )

    def _decide_ec(self, load: RecordedLoad, trigger: Trigger) -> Decision:
        failed = load.failed
        loss = EcLoss(1, trigger=trigger)
        if failed is not None:
            loss = EcLoss(failed.items, failed.local_media, failed.exported, trigger)
        return decide_ec(loss, default=self._own.ec or Outcome.FAILED, policy=self._policy, observed=None)

    def _note(self, note: Note, applies: bool) -> None:
        if applies:
            self._result.notes[note] += 1

    def _unknown(self, why: Note) -> None:
        self._result.notes[why] += 1
        self._result.would.unknown += 1


def _was_cut(load: RecordedLoad) -> bool:
    """Return whether a deadline, or a reflex, ended its wait."""
    return load.failed is not None and load.failed.trigger in (Trigger.DEADLINE, Trigger.START_WAIT)


def _is_spoiled(load: RecordedLoad) -> bool:
    """Return whether another load has spoiled the blocks of a request that waited for none."""
    failed = load.failed
    spoiled = failed is not None and failed.mode == c.FAILURE_MODE_COLLATERAL
    return spoiled and load.started_ns == load.ended_ns


def _count_recorded(counts: Counts, load: RecordedLoad) -> None:
    failed = load.failed
    counts.loads += 1
    counts.waited_ns += load.ended_ns - load.started_ns
    if failed is None:
        counts.loaded += 1
        return
    counts.waits_cut += failed.trigger is Trigger.DEADLINE
    counts.not_tried += failed.trigger is Trigger.QUARANTINE
    if failed.outcome is Outcome.FAILED:
        counts.failed += 1
        return
    counts.by_reflex += failed.trigger in REFLEX_TRIGGERS
    counts.recomputed += 1
    counts.tokens_recomputed += load.tokens or 0
    counts.items_recomputed += failed.items


def _inferred(recorded: RecordedLoads, own: OwnOutcomes) -> OwnOutcomes:
    """Return *own*, completed by what was decided without a policy."""
    seen = {
        load.channel: load.failed.outcome
        for load in recorded.loads
        if load.failed is not None and load.failed.by_vllm and load.failed.local_media
    }
    kv = own.kv if own.kv is not None else seen.get(c.CHANNEL_KV)
    return OwnOutcomes(kv, own.ec if own.ec is not None else seen.get(c.CHANNEL_EC))
