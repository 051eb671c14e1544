"""Failed KV loads of one step: the affected requests, the decision about each, and the way back through vLLM's own paths.

Without a policy only outcomes are reported: vLLM's own switch holds, to the letter. vLLM puts the blocks of synchronous loads into
the prefix cache at once. So the steps that the workers have not confirmed yet are noted, with the blocks of requests that are
preempted or end before the result is in.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat import drop_stale_output, has_stale_output
from penstock.instrumentation.vllm.recovery import UnconfirmedStep, UnconfirmedSteps, freed_by_name, rewind
from penstock.instrumentation.vllm.requests import Affected
from penstock.rules import DecidedBy, Outcome, Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.instrumentation.vllm.recovery import FreedBlocks, Taint, WorkerEncoderInputs
    from penstock.rules import Decision

    Settle = Callable[[Any, Affected], Decision]

WAITING_FOR_KV: Final = "WAITING_FOR_REMOTE_KVS"
"""The name of the status of a request that waits for its load."""
_PREEMPTED: Final = "PREEMPTED"
_RUNNING: Final = "RUNNING"


class UnconfirmedKvLoads(UnconfirmedSteps[UnconfirmedStep]):
    """The steps of one scheduler that load KV themselves; the key of a step is its scheduler output.

    Attributes:
        allocated: requests that got blocks for a load in the step that is being put together; always the same set.

    """

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.allocated: set[str] = set()

    @property
    def freed(self) -> Sequence[FreedBlocks]:
        """Blocks freed since the oldest of the steps was scheduled, whose result comes first."""
        return self.steps[0].freed if self.steps else ()

    def on_allocated(self, request_id: str) -> None:
        """Record that a request got its blocks for a load, in the step that is being put together."""
        self.allocated.add(request_id)

    def on_waiting(self, request_id: str) -> None:
        """Record that the request waits for its load, not the step."""
        self.allocated.discard(request_id)

    def after_schedule(self, output: Any) -> None:
        """Expect the result of the step with that *output*, if it loads something."""
        if self.allocated:
            self.allocated.clear()
            self.steps.append(UnconfirmedStep(weakref.ref(output)))


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What vLLM's own paths have to do in a step in which a policy decides.

    Attributes:
        reload: waiting requests that lose all that was loaded: ``_handle_failed_recving``.
        invalid: blocks of waiting requests that keep what comes before them: ``_handle_invalid_blocks``.
        failed: requests that fail; their output of this step is not delivered.

    """

    reload: frozenset[str]
    invalid: frozenset[int]
    failed: frozenset[str]


class KvFailurePlanner:
    """Plans what is done about the failed loads of one scheduler; on its thread, inside a step."""

    def __init__(
        self,
        scheduler: Any,
        *,
        external_tokens: Callable[[Any], int],
        trigger: Callable[[str], Trigger],
        media: WorkerEncoderInputs,
        policy_decides: Callable[[], bool],
        settle: Settle,
    ) -> None:
        """Plan for *scheduler*.

        Args:
            scheduler: vLLM's.
            external_tokens: how many tokens the present load of a request brings.
            trigger: what has ended the load of a request.
            media: what the workers know of the requests' inputs.
            policy_decides: whether a policy says what is done about every failed load.
            settle: decides about one request and reports the outcome.

        """
        self._scheduler = scheduler
        self._external_tokens = external_tokens
        self._trigger = trigger
        self._media = media
        self._policy_decides = policy_decides
        self._settle = settle
        self._exports = rewind.exports(scheduler)

    def plan(
        self,
        failed: AbstractSet[str],
        invalid: AbstractSet[int],
        pinned: AbstractSet[str] = frozenset(),
        freed: Iterable[FreedBlocks] = (),
        ended: AbstractSet[str] = frozenset(),
    ) -> RecoveryPlan | None:
        """Decide about every affected request, and rewind those that run.

        Args:
            failed: requests whose load failed as a whole.
            invalid: ids of blocks that were not loaded.
            pinned: requests whose load is given up while a transfer may still write to their blocks. They can only fail: vLLM
                keeps the blocks of one that has finished until its load has ended, and gives no other blocks to one that has not.
            freed: blocks that requests have lost since the step of these loads was scheduled.
            ended: requests whose load has ended on every rank in this step, however it did.

        Returns:
            What is left to do, or None where vLLM's own configuration decides about all of it.

        """
        policy_decides = self._policy_decides()
        live = [each for each in self._scheduler.requests.values() if not each.is_finished()]
        # vLLM itself does not know freed blocks. Without invalid blocks nothing is shared: the loads of waiting requests failed as a whole.
        taint, freed_requests = self._spread(live, invalid, freed if policy_decides else ())
        cases = [
            (each, case)
            for each in live
            if (case := self._affected(each, taint, freed_requests, failed, pinned, ended))
        ]
        # Those that vLLM itself would find first; the others are collateral, only where a policy rewinds.
        known = taint.direct | failed | pinned
        found = [(each, self._settle(each, case)) for each, case in cases if each.request_id in known]
        if not policy_decides and all(decision.decided_by is DecidedBy.VLLM for _, decision in found):
            return None
        collateral = [
            (each, self._settle(each, case)) for each, case in cases if each.request_id not in known
        ]
        return self._rewind([*found, *collateral], taint, failed, invalid)

    def _spread(
        self, live: Sequence[Any], invalid: AbstractSet[int], freed: Iterable[FreedBlocks]
    ) -> tuple[Taint, AbstractSet[str]]:
        """Return what the *invalid* blocks have spoiled, and the requests that have lost such blocks meanwhile."""
        sizes = rewind.block_sizes(self._scheduler)
        if not invalid:
            return rewind.spread([], invalid, sizes), frozenset()
        by_name = freed_by_name(freed)
        seeds = {
            name: start
            for name, blocks in by_name.items()
            if (start := blocks.first_token_in(invalid, sizes)) is not None
        }
        holders = [
            *rewind.holders(self._scheduler, live),
            *(blocks.holder(name) for name, blocks in by_name.items()),
        ]
        taint = rewind.spread(holders, invalid, sizes, seeds)
        freed_requests = {by_name[name].request_id for name in taint.starts if name in by_name}
        direct = taint.direct | {by_name[name].request_id for name in seeds}
        return replace(taint, direct=direct), freed_requests

    def _affected(
        self,
        request: Any,
        taint: Taint,
        freed_requests: AbstractSet[str],
        failed: AbstractSet[str],
        pinned: AbstractSet[str],
        ended: AbstractSet[str],
    ) -> Affected | None:
        request_id, status = request.request_id, request.status.name
        start = taint.starts.get(request_id)
        waiting = status == WAITING_FOR_KV
        stuck = waiting and request_id in pinned
        reload = waiting and (request_id in failed or stuck)
        # Preempted meanwhile: all that is left to take back is the output of the tainted step, which vLLM would deliver.
        stale = (
            start is None
            and status == _PREEMPTED
            and request_id in freed_requests
            and has_stale_output(request)
        )
        if start is None and not reload and not stale:
            return None
        computed = min(request.num_computed_tokens, request.num_tokens)
        loads = self._external_tokens(request)
        external = min(loads, computed)
        kept = computed - (external or computed) if reload or start is None else min(start, computed)
        return Affected(
            request_id,
            kept,
            computed - kept,
            exported=(status == _RUNNING or stale) and self._exports,
            held=status not in {_RUNNING, WAITING_FOR_KV} and not stale,
            pinned=stuck and request_id not in failed,
            loading=waiting and not reload and not self._has_ended(request_id, ended),
            without_media=self._media.missing_beyond(request, kept),
            collateral=not reload and (not loads or request_id not in taint.direct),
            trigger=self._trigger(request_id),
        )

    def _has_ended(self, request_id: str, ended: AbstractSet[str]) -> bool:
        """Return whether every rank has ended a load, in this step or before."""
        return request_id in ended or request_id in self._scheduler.finished_recving_kv_req_ids

    def _rewind(
        self,
        decided: Iterable[tuple[Any, Decision]],
        taint: Taint,
        failed: AbstractSet[str],
        invalid: AbstractSet[int],
    ) -> RecoveryPlan:
        # First of all, so that no request finds the tainted blocks again, whatever is decided.
        rewind.evict(self._scheduler, taint)
        reload: set[str] = set()
        broken: set[int] = set()
        lost: set[str] = set()
        for request, decision in decided:
            request_id = request.request_id
            if decision.outcome is Outcome.FAILED:
                lost.add(request_id)
            elif request.status.name == _RUNNING:
                rewind.preempt(self._scheduler, request)
            elif request.status.name == _PREEMPTED:
                drop_stale_output(self._scheduler, request)
            else:
                remote = self._remote_blocks(request, invalid)
                if request_id in failed or remote is None:
                    reload.add(request_id)
                else:
                    broken |= remote
        return RecoveryPlan(frozenset(reload), frozenset(broken), frozenset(lost))

    def _remote_blocks(self, request: Any, invalid: AbstractSet[int]) -> AbstractSet[int] | None:
        """Return a waiting request's invalid blocks, or None unless all that is tainted was to be loaded for it alone.

        vLLM can shorten such a load to what came before the blocks. It cannot with several groups, and blocks of the local
        prefix are shared: there the load begins again, from what the prefix cache still has.
        """
        groups = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        if len(groups) > 1:
            return None
        (size,) = rewind.block_sizes(self._scheduler)
        local = max(request.num_computed_tokens - self._external_tokens(request), 0) // size
        found = invalid & set(groups[0][local:])
        return found if found and invalid.isdisjoint(groups[0][:local]) else None
