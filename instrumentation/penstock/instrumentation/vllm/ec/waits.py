"""Requests that wait for encoder outputs: their deadlines (``deferral``), and the decision about a wait that an output ends by not coming."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec.protocol import EcFailure
from penstock.instrumentation.vllm.requests import Affected, Cause
from penstock.rules import DeadlineLimits, Deadlines, Outcome, Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.instrumentation.vllm.ec.decider import EcFailureDecider
    from penstock.instrumentation.vllm.ec.drills import EcDrills
    from penstock.instrumentation.vllm.ec.observer import EcObserver
    from penstock.instrumentation.vllm.ec.pending_items import BadItems, PendingItems
    from penstock.instrumentation.vllm.ec.protocol import EcLoader
    from penstock.instrumentation.vllm.requests import SchedulerObserver
    from penstock.rules import Policy

_REASON: Final = c.DEFERRAL_REASON_ENCODER_CACHE
_TIMED_OUT: Final = Cause(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)


@dataclass(frozen=True, slots=True)
class EcWait:
    """A request that waits, and how many of its tokens were computed when it was last asked about."""

    request: Any
    computed: int


class EcDeadlines:
    """The waiting requests of one scheduler. The clocks run without a policy too, so that a new one applies to requests that already wait.

    Attributes:
        table: those that wait, by request; read at each poll.

    """

    def __init__(self) -> None:
        self._limits = DeadlineLimits()
        self._deadlines = Deadlines()
        self.table: dict[str, EcWait] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.table

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the limits of the policy that came into force."""
        self._limits = DeadlineLimits.from_policy(policy.deferral)

    def on_waiting(self, request: Any, computed: int) -> bool:
        """Record that a request waits; return False if that is known (a poll, of which every step has one)."""
        known = self.table.get(request.request_id)
        if known is not None and known.computed == computed:
            return False
        self.table[request.request_id] = EcWait(request, computed)
        self._deadlines.begin(request.request_id, time.monotonic_ns())
        return True

    def on_began(self, request_id: str) -> None:
        """Record that a transfer has begun that a request waits for; the first of several starts the clock."""
        self._deadlines.started(request_id, time.monotonic_ns())

    def on_ended(self, request_id: str) -> None:
        """Record that a request no longer waits."""
        if self.table.pop(request_id, None) is not None:
            self._deadlines.end(request_id)

    def waiting(self) -> list[EcWait]:
        """Return the requests that wait now."""
        return list(self.table.values())

    def take_overdue(self) -> list[EcWait]:
        """Return the requests that are over a deadline; each is returned once, and then waits no longer."""
        if not self.table:
            return []
        overdue = self._deadlines.pop_overdue(self._limits, time.monotonic_ns())
        return [self.table.pop(each.request_id) for each in overdue]


class EcWaits:
    """The waits of one scheduler; on its thread. None of the requests has computed on what it waits for.

    Attributes:
        table: those that are known, by request.

    """

    def __init__(
        self,
        observer: SchedulerObserver,
        decider: EcFailureDecider,
        telemetry: EcObserver,
        pending: PendingItems,
        bad: BadItems,
        loader: EcLoader | None,
        drills: EcDrills,
        do_without: Callable[[Any, str, Cause], None],
    ) -> None:
        """Start with none; *do_without* has a request encode an item here. The others are parts of ``EcLoadController``."""
        self._observer = observer
        self._decider = decider
        self._telemetry = telemetry
        self._pending = pending
        self._bad = bad
        self._loader = loader
        self._drills = drills
        self._do_without = do_without
        self._deadlines = EcDeadlines()
        self.table: Mapping[str, EcWait] = self._deadlines.table

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the limits of the policy that came into force."""
        self._deadlines.on_policy_change(policy)

    def on_waiting(self, request: Any, computed: int) -> None:
        """Report that a request waits, or still does, and when a transfer for it has begun."""
        new = self._deadlines.on_waiting(request, computed)
        if self._loader is None and not new:
            return
        self._observer.on_deferred(request, _REASON, self._pending.awaited_peer(request, computed))
        self._note_transfer(request, computed)

    def end(self, request_id: str, *, timed_out: bool = False) -> None:
        """End the wait of a request, if it waits, and report it."""
        wait = self.table.get(request_id)
        if wait is not None:
            # It may have begun and ended since the last poll.
            self._note_transfer(wait.request, wait.computed)
            self._deadlines.on_ended(request_id)
        if request_id in self._observer.deferred:
            self._observer.on_ready(request_id, _REASON, timed_out=timed_out)

    def forget(self, request_id: str) -> None:
        """Forget a request that has finished."""
        self._deadlines.on_ended(request_id)

    def decide_overdue(self) -> None:
        """Decide about the requests that are over a deadline."""
        for wait in self._deadlines.take_overdue():
            self._overdue(wait)

    def decide_failed(self, causes: Mapping[str, Cause]) -> None:
        """Make the items with these *causes* bad, and decide about the requests that wait for one."""
        for item, cause in causes.items():
            self._bad.remember(item, cause)
        for wait in self._deadlines.waiting():
            items = [item for item in self._pending.missing(wait.request, wait.computed) if item in causes]
            if items and not wait.request.is_finished():
                affected = self._affected(wait, items, Trigger.FAILURE)
                self._decider.decide(wait.request, affected, causes[items[0]])

    def _note_transfer(self, request: Any, computed: int) -> None:
        transfer = self._pending.transfer(request, computed)
        if transfer is not None:
            self._deadlines.on_began(request.request_id)
            self._observer.on_transfer_began(request.request_id, _REASON, *transfer)

    def _overdue(self, wait: EcWait) -> None:
        request = wait.request
        items = self._pending.awaited(request, wait.computed)
        if request.is_finished() or not items:
            return
        self.end(request.request_id, timed_out=True)
        peer = self._loader.peer_of(items[0]) if self._loader is not None else None
        late = any(map(self._drills.rehearsed, items))
        cause = replace(_TIMED_OUT, peer=peer, rehearsal=late)
        self._report_overdue(request, items)
        affected = self._affected(wait, items, Trigger.DEADLINE)
        if self._decider.decide(request, affected, cause).outcome is Outcome.RECOMPUTED:
            for item in items:
                self._do_without(request, item, cause)

    def _report_overdue(self, request: Any, items: Iterable[str]) -> None:
        """Report a failure of each item that is overdue, as a deadline is for KV."""
        for item in items:
            loader = self._loader
            began_ns = None if loader is None else loader.transfer_began(item)
            self._telemetry.failed(
                EcFailure(
                    item,
                    _TIMED_OUT.mode,
                    _TIMED_OUT.error_type,
                    "a request has waited for it for longer than deferral allows",
                    peer=None if loader is None else loader.peer_of(item),
                    request_id=request.request_id,
                    start_ns=began_ns or 0,
                    rehearsal=self._drills.rehearsed(item),
                )
            )

    def _affected(self, wait: EcWait, items: Sequence[str], trigger: Trigger) -> Affected:
        return Affected(
            wait.request.request_id,
            wait.computed,
            items=tuple(items),
            local_media=self._pending.has_media(wait.request, wait.computed, items),
            trigger=trigger,
        )
