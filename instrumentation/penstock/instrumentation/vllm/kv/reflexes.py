"""The reflexes of one scheduler's KV loads (``reflexes``): what it measures, and what it gives up or leaves out by that.

Without a policy that has one nothing is measured. What a reflex gives up or leaves out is computed here, so it leaves alone what cannot
be: requests with media, loads that no worker ends, blocks that a connector may have passed on, and what the policy leaves no room for.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.instrumentation.core import guarded
from penstock.rules import (
    NO_REFLEXES,
    DecidedBy,
    EngineReflexes,
    Outcome,
    Overdue,
    Verdict,
    WaitKind,
    reflex_rules,
    tells_compute_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.instrumentation.vllm.requests import RequestRecord, SchedulerObserver
    from penstock.rules import Decision, Policy, WaitLimit

_HOOK: Final = "reflexes"
_PER_MINUTE: Final = "perMinute is reached"
_NO_ROOM: Final = "kvLoadFailure has no room for it"
_CANNOT_END: Final = "it cannot be taken back here"
# Ends of waits that have passed otherwise, in the heap.
_MOST_STALE: Final = 1024
_MOST_ENGINES: Final = 1024


class _Wait(NamedTuple):
    """A load that is waited for; *limit* only where something is known of what computing takes."""

    since_ns: int
    due_ns: int = 0
    limit: WaitLimit | None = None


class KvReflexes:
    """All but :meth:`on_policy_change` runs on the scheduler's thread, inside a step.

    Attributes:
        able: whether its connector tells when a transfer begins, its workers end loads, and what was lost can be computed here.
        active: whether a policy has a reflex. A step without pays for no more than this.
        gives_up: whether a policy has loads given up whose start does not come.

    """

    def __init__(
        self,
        observer: SchedulerObserver,
        *,
        able: bool,
        can_end: Callable[[str], bool],
        has_room: Callable[[int, int], bool],
    ) -> None:
        """Measure what *observer* sees.

        Args:
            observer: of the scheduler's requests.
            able: see above.
            can_end: whether the load that a request waits for can be ended.
            has_room: whether so many tokens may be recomputed now, beside so many that are about to be.

        """
        self.able = able
        self.active = self.gives_up = False
        self._observer = observer
        self._can_end = can_end
        self._has_room = has_room
        self._engine = EngineReflexes()
        self._waits: dict[str, _Wait] = {}
        self._due: list[tuple[int, str]] = []
        # Tokens of loads that were given up and are not decided about.
        self._given_up: dict[str, int] = {}
        # The engine that was loaded from last, by address: what was measured is not of another one.
        self._engines: OrderedDict[str, str] = OrderedDict()

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the policy that came into force; what was measured under another one holds on."""
        rules = reflex_rules(policy) if self.able else NO_REFLEXES
        if rules == self._engine.rules:
            return
        self.active = bool(rules)
        self.gives_up = rules.start_wait is not None and rules.start_wait.enforce
        self._observer.on_first_token = self._on_first_token if self.active else None
        if not self.active:
            self._engine = EngineReflexes()
            self._waits, self._due, self._given_up = {}, [], {}
        self._engine.rules = rules

    # A peer that is slow

    def leaves_out(self, request: Any, record: RequestRecord, tokens: int) -> str:
        """Return why *tokens* of a request are computed here instead of loaded from its peer; empty if they are loaded."""
        rule = self._engine.rules.slow_peer
        if rule is None or record.peer is None or record.would or request.mm_features:
            return ""
        if self._engines.get(record.peer.address) != record.peer.engine_id:
            return ""
        now = time.monotonic_ns()
        reason = self._engine.slow_peer(record.peer.address, tokens, now)
        if not reason:
            return ""
        if not rule.enforce:
            record.would = reason
        elif not self._has_room(tokens, sum(self._given_up.values())):
            record.would = f"{reason}; {_NO_ROOM}"
        elif not self._engine.may_act(now):
            record.would = f"{reason}; {_PER_MINUTE}"
        return "" if record.would else reason

    # A start that does not come

    def on_waiting(self, request: Any) -> None:
        """Begin a request's wait for its load; a repeated call changes nothing."""
        request_id = request.request_id
        if request_id in self._waits:
            return
        now = time.monotonic_ns()
        tokens = self._observer.record_of(request).external_tokens
        limit = None if request.mm_features else self._engine.wait_limit(tokens, now)
        if limit is None:
            self._waits[request_id] = _Wait(now)
            return
        wait = self._waits[request_id] = _Wait(now, now + limit.limit_ns, limit)
        heapq.heappush(self._due, (wait.due_ns, request_id))
        if len(self._due) > 2 * len(self._waits) + _MOST_STALE:
            self._due = [(each.due_ns, name) for name, each in self._waits.items() if each.limit is not None]
            heapq.heapify(self._due)

    @guarded(_HOOK, default=())
    def overdue(self, starts: Mapping[str, int], now: int) -> Sequence[Overdue]:
        """Return the loads that are given up now; *starts* are the requests whose transfer has not begun."""
        found: list[Overdue] = []
        while self._due and self._due[0][0] <= now:
            due_ns, request_id = heapq.heappop(self._due)
            wait, record = self._waits.get(request_id), self._observer.record(request_id)
            if wait is None or wait.due_ns != due_ns or wait.limit is None:
                continue
            if record is None or request_id not in starts or self._engine.rules.start_wait is None:
                continue
            # A quarantined peer's probe has to end by itself, or it would prove nothing.
            if record.probe:
                continue
            waited = now - wait.since_ns
            refused = self._refused(record, wait.limit, waited, now)
            if refused:
                record.would = record.would or refused
                continue
            record.reflex = wait.limit.reason(waited)
            self._given_up[request_id] = wait.limit.tokens
            found.append(Overdue(request_id, WaitKind.REFLEX, waited, wait.limit.limit_ns, record.reflex))
        return found

    def _refused(self, record: RequestRecord, limit: WaitLimit, waited_ns: int, now: int) -> str:
        """Return what a load would be given up for that is not; empty if it is given up."""
        reason = limit.reason(waited_ns)
        if not self.gives_up:
            return reason
        if not self._can_end(record.request_id):
            return f"{reason}; {_CANNOT_END}"
        if not self._has_room(limit.tokens, sum(self._given_up.values())):
            return f"{reason}; {_NO_ROOM}"
        return "" if self._engine.may_act(now) else f"{reason}; {_PER_MINUTE}"

    # What is measured

    def on_load_ended(self, record: RequestRecord, address: str) -> None:
        """Record that a load from the peer at *address* has succeeded, or that a reflex has given it up."""
        wait = self._waits.pop(record.request_id, None)
        if wait is None or record.peer is None:
            return
        now = time.monotonic_ns()
        # What it waited behind the handshakes of other peers is not this one's.
        gates = (record.gates.fields() if record.gates is not None else None) or {}
        took = max(now - wait.since_ns - gates.get("handshake_queue_nano", 0), 0)
        if self._engines.get(address) != record.peer.engine_id:
            self._engine.forget(address)
        self._engine.on_loaded(address, record.external_tokens, took, now)
        self._engines[address] = record.peer.engine_id
        self._engines.move_to_end(address)
        if len(self._engines) > _MOST_ENGINES:
            self._engines.popitem(last=False)

    def on_ended(self, request_id: str) -> None:
        """Forget the wait of a request."""
        self._waits.pop(request_id, None)
        self._given_up.pop(request_id, None)

    @guarded(_HOOK, default=None)
    def _on_first_token(self, record: RequestRecord, request: Any) -> None:
        """Record what computing its prompt took, and how long it queued; unknown of a request that lost its blocks meanwhile."""
        fields = None if record.gates is None or record.preempted_ns else record.gates.fields()
        if fields is None:
            return
        now = time.monotonic_ns()
        self._engine.on_queued(fields.get("queue_nano", 0), now)
        prompt = request.num_prompt_tokens
        computed = prompt - record.local_cached_tokens - record.external_cached_tokens
        if tells_compute_time(computed, prompt):
            took = fields.get("own_prefill_nano", 0) + fields.get("recompute_nano", 0)
            self._engine.on_computed(computed, took, now)

    # A storm of recomputation

    def on_decided(self, decision: Decision, tokens: int) -> Decision:
        """Return *decision*, with what a reflex would have decided about *tokens* that are recomputed in a storm."""
        if not self.active or decision.outcome is not Outcome.RECOMPUTED:
            return decision
        now = time.monotonic_ns()
        self._engine.on_recomputed(tokens, now)
        if decision.observed is not None or decision.decided_by is DecidedBy.REFLEX:
            return decision
        reason = self._engine.storm(tokens, now)
        if not reason:
            return decision
        return replace(decision, observed=Verdict(Outcome.FAILED, DecidedBy.REFLEX, reason))
