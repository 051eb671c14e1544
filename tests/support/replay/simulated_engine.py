"""An engine without vLLM: loads with a fate of their own, decided about by the rules, told as the hooks tell them."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.proto import constants as c
from penstock.proto.v1 import events_pb2
from penstock.rules import (
    BreakerState,
    Budgets,
    DeadlineLimits,
    Deadlines,
    KvLoss,
    Outcome,
    PeerFailure,
    Quarantine,
    RecomputeBudget,
    Rules,
    Trigger,
    WaitKind,
    decide_kv,
)

from tests.support.agent.batches import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.proto.v1.events_pb2 import Event
    from penstock.rules import Admit, Change, Policy


@dataclass(frozen=True)
class Fate:
    """What becomes of a load that nobody ends: times in nanoseconds, *transfer* and *lasts* from its start on.

    Attributes:
        transfer: when its transfer begins; None for never.
        mode: of its failure; 0 if it succeeds.

    """

    at: int
    peer: str
    tokens: int
    lasts: int
    transfer: int | None = None
    mode: int = 0
    error_type: int = 0


class SimulatedEngine:
    """One run of *fates* under *policy*."""

    def __init__(self, fates: Sequence[Fate], policy: Policy, own: Outcome) -> None:
        self.events: list[Event] = []
        self.now = min((fate.at for fate in fates), default=0)
        self._policy, self._own = policy, own
        self._limits = DeadlineLimits.from_policy(policy.deferral)
        self._budgets = Budgets(RecomputeBudget(lambda: self.now), RecomputeBudget(lambda: self.now))
        self._budgets.on_policy_change(policy)
        self._quarantine = Quarantine(self._changed)
        section = policy.peer_quarantine
        self._quarantine.set_rules(None if section is None else Rules.from_policy(section), self.now)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for number, fate in enumerate(fates):
            self._at(fate.at, lambda number=number, fate=fate: self._begin(f"r{number}", fate))  # type: ignore[misc]

    def run(self) -> list[Event]:
        """Return all that the engine tells."""
        while self._queue:
            self.now, _, happen = heapq.heappop(self._queue)
            happen()
        return self.events

    def _at(self, time_ns: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time_ns, next(self._numbers), happen))

    def _begin(self, name: str, fate: Fate) -> None:
        admit = self._quarantine.admit(fate.peer, "", self.now, channel=c.CHANNEL_KV)
        if not admit.remote:
            self._decide(name, fate, Trigger.QUARANTINE, c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_REFUSED)
            return
        due = self._due(fate)
        end = fate.at + fate.lasts
        overdue = due is not None and due < end
        self._at(due if due is not None and overdue else end, lambda: self._end(name, fate, admit, overdue))

    def _due(self, fate: Fate) -> int | None:
        """Ask the engine's own table of deadlines."""
        deadlines = Deadlines()
        deadlines.begin("r", fate.at)
        due = deadlines.next_due(self._limits)
        if fate.transfer is None or (due is not None and due < fate.at + fate.transfer):
            return due
        deadlines.started("r", fate.at + fate.transfer)
        assert self._limits.of(WaitKind.TRANSFER) is None or deadlines.next_due(self._limits) is not None
        return deadlines.next_due(self._limits)

    def _end(self, name: str, fate: Fate, admit: Admit, overdue: bool) -> None:
        mode, kind = fate.mode, fate.error_type
        if overdue:
            mode, kind = c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT
        failure = PeerFailure(mode, kind) if mode else None
        self._quarantine.report(fate.peer, "", failure, self.now, probe=admit.probe, channel=c.CHANNEL_KV)
        if failure is not None:
            self._decide(name, fate, Trigger.DEADLINE if overdue else Trigger.FAILURE, mode, kind)
        began = fate.transfer is not None and fate.at + fate.transfer <= self.now
        self._tell(
            "deferral_end",
            name,
            reason=c.DEFERRAL_REASON_REMOTE_KV,
            channel=c.CHANNEL_KV,
            peer={"address": fate.peer},
            ending=c.DEFERRAL_ENDING_READY,
            start_time_unix_nano=fate.at,
            transfer_start_time_unix_nano=fate.at + (fate.transfer or 0) if began else 0,
        )
        if failure is None:
            self._tell(
                "request_closed", name, peer={"address": fate.peer}, external_cached_tokens=fate.tokens
            )

    def _decide(self, name: str, fate: Fate, trigger: Trigger, mode: int, error_type: int) -> None:
        loss = KvLoss(fate.tokens, trigger=trigger)
        decided = decide_kv(loss, vllm=self._own, policy=self._policy, observed=None, budgets=self._budgets)
        self._tell(
            "load_outcome",
            name,
            channel=c.CHANNEL_KV,
            outcome=int(decided.outcome),
            decided_by=int(decided.decided_by),
            mode=mode,
            error_type=error_type,
            peer={"address": fate.peer},
            attempt=1,
            tokens_recomputed=fate.tokens,
            policy_hash=self._policy.hash,
            reason=decided.reason,
        )

    def _changed(self, change: Change) -> None:
        status = change.status
        if status.state is change.previous:
            return
        states = {
            BreakerState.CLOSED: events_pb2.QUARANTINE_STATE_CLOSED,
            BreakerState.OPEN: events_pb2.QUARANTINE_STATE_OPEN,
            BreakerState.HALF_OPEN: events_pb2.QUARANTINE_STATE_HALF_OPEN,
        }
        self._tell(
            "quarantine_changed",
            "",
            peer={"address": status.peer},
            state=states[status.state],
            previous=states[change.previous],
            reason=status.reason,
        )

    def _tell(self, kind: str, request_id: str, **body: Any) -> None:
        self.events.append(event(kind, request_id, time_ns=self.now, **body))
