"""Failed KV loads of one step: who is affected, what is decided about each, and the way back through vLLM's own paths.

Without a word from a policy nothing is done here but telling: vLLM's own switch holds, to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.resilience import DecidedBy, Outcome, Trigger
from penstock.instrumentation.vllm.recovery import named, rewind
from penstock.instrumentation.vllm.requests import Affected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.instrumentation.resilience import Decision
    from penstock.instrumentation.vllm.recovery import FreedBlocks, Taint, WorkerEncoderInputs

    Settle = Callable[[Any, Affected], Decision]

_PARKED: Final = "WAITING_FOR_REMOTE_KVS"
_PREEMPTED: Final = "PREEMPTED"
_RUNNING: Final = "RUNNING"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What vLLM's own paths have to do in a step in which a policy decides.

    Attributes:
        anew: waiting requests that lose all that was loaded: ``_handle_failed_recving``.
        invalid: blocks of waiting requests that keep what comes before them: ``_handle_invalid_blocks``.
        failed: requests that fail; their output of this step is not delivered.

    """

    anew: frozenset[str]
    invalid: frozenset[int]
    failed: frozenset[str]


class KvFailurePlanner:
    """Plans what is done about the failed loads of one scheduler; on its thread, inside a step."""

    def __init__(
        self,
        scheduler: Any,
        *,
        external_tokens: Callable[[Any], int],
        timed_out: Callable[[str], bool],
        media: WorkerEncoderInputs,
        speaks: Callable[[], bool],
        settle: Settle,
    ) -> None:
        """Plan for *scheduler*.

        Args:
            scheduler: vLLM's.
            external_tokens: how many tokens the present load of a request brings.
            timed_out: whether a deadline has ended the load of a request.
            media: what the workers know of the requests' inputs.
            speaks: whether a policy says what is done about every failed load.
            settle: decides about one request and reports the outcome.

        """
        self._scheduler = scheduler
        self._external_tokens = external_tokens
        self._timed_out = timed_out
        self._media = media
        self._speaks = speaks
        self._settle = settle
        self._exports = exports(scheduler)

    def plan(
        self,
        failed: AbstractSet[str],
        invalid: AbstractSet[int],
        pinned: AbstractSet[str] = frozenset(),
        ghosts: Iterable[FreedBlocks] = (),
    ) -> RecoveryPlan | None:
        """Decide about every request that is affected, and rewind those that run.

        Args:
            failed: requests whose load failed as a whole.
            invalid: ids of blocks that were not loaded.
            pinned: requests whose load is given up while a transfer may still write to their blocks. They can only fail: vLLM
                keeps the blocks of one that has finished until its load has ended, and gives no other blocks to one that has not.
            ghosts: who has lost blocks since the step of these loads was scheduled.

        Returns:
            What is left to do, or None where vLLM's own configuration decides about all of it.

        """
        speaks = self._speaks()
        live = [each for each in self._scheduler.requests.values() if not each.is_finished()]
        # vLLM itself knows no ghosts. Without invalid blocks nothing is shared: the loads of waiting requests failed as a whole.
        taint, haunted = self._spread(live, invalid, ghosts if speaks else ())
        cases = [
            (each, case) for each in live if (case := self._affected(each, taint, haunted, failed, pinned))
        ]
        # Those that vLLM itself would find first; the others are only drawn in where a policy rewinds.
        known = taint.direct | failed | pinned
        found = [(each, self._settle(each, case)) for each, case in cases if each.request_id in known]
        if not speaks and all(decision.decided_by is DecidedBy.VLLM for _, decision in found):
            return None
        drawn = [(each, self._settle(each, case)) for each, case in cases if each.request_id not in known]
        return self._rewind([*found, *drawn], taint, failed, invalid)

    def _spread(
        self, live: Sequence[Any], invalid: AbstractSet[int], ghosts: Iterable[FreedBlocks]
    ) -> tuple[Taint, AbstractSet[str]]:
        """Return what the *invalid* blocks have spoiled, and the requests that have lost such blocks meanwhile."""
        sizes = rewind.block_sizes(self._scheduler)
        if not invalid:
            return rewind.spread([], invalid, sizes), frozenset()
        gone = named(ghosts)
        seeds = {
            name: start
            for name, ghost in gone.items()
            if (start := ghost.first_of(invalid, sizes)) is not None
        }
        holders = [
            *rewind.holders(self._scheduler, live),
            *(ghost.holder(name) for name, ghost in gone.items()),
        ]
        taint = rewind.spread(holders, invalid, sizes, seeds)
        haunted = {gone[name].request_id for name in taint.starts if name in gone}
        direct = taint.direct | {gone[name].request_id for name in seeds}
        return replace(taint, direct=direct), haunted

    def _affected(
        self,
        request: Any,
        taint: Taint,
        haunted: AbstractSet[str],
        failed: AbstractSet[str],
        pinned: AbstractSet[str],
    ) -> Affected | None:
        request_id, status = request.request_id, request.status.name
        start = taint.starts.get(request_id)
        stuck = status == _PARKED and request_id in pinned
        anew = status == _PARKED and (request_id in failed or stuck)
        # Preempted meanwhile: all that is left to take back is the output of the tainted step, which vLLM would deliver.
        stale = (
            start is None
            and status == _PREEMPTED
            and request_id in haunted
            and request.num_stale_output_tokens > 0
        )
        if start is None and not anew and not stale:
            return None
        computed = min(request.num_computed_tokens, request.num_tokens)
        loads = self._external_tokens(request)
        external = min(loads, computed)
        kept = computed - (external or computed) if anew or start is None else min(start, computed)
        return Affected(
            request_id,
            kept,
            computed - kept,
            exported=(status == _RUNNING or stale) and self._exports,
            held=status not in {_RUNNING, _PARKED} and not stale,
            pinned=stuck and request_id not in failed,
            without_media=self._media.lacks_behind(request, kept),
            collateral=not anew and (not loads or request_id not in taint.direct),
            trigger=Trigger.DEADLINE if self._timed_out(request_id) else Trigger.FAILURE,
        )

    def _rewind(
        self,
        decided: Iterable[tuple[Any, Decision]],
        taint: Taint,
        failed: AbstractSet[str],
        invalid: AbstractSet[int],
    ) -> RecoveryPlan:
        # First of all, so that no request finds the poison again, whatever becomes of it.
        rewind.evict(self._scheduler, taint)
        anew: set[str] = set()
        broken: set[int] = set()
        lost: set[str] = set()
        for request, decision in decided:
            request_id = request.request_id
            if decision.outcome is Outcome.FAILED:
                lost.add(request_id)
            elif request.status.name == _RUNNING:
                rewind.preempt(self._scheduler, request)
            elif request.status.name == _PREEMPTED:
                request.drop_stale_output = True
            else:
                remote = self._remote_blocks(request, invalid)
                if request_id in failed or remote is None:
                    anew.add(request_id)
                else:
                    broken |= remote
        return RecoveryPlan(frozenset(anew), frozenset(broken), frozenset(lost))

    def _remote_blocks(self, request: Any, invalid: AbstractSet[int]) -> AbstractSet[int] | None:
        """Return a waiting request's invalid blocks, or None unless all that is tainted was to be loaded for it alone.

        vLLM can shorten such a load to what came before the blocks. It cannot with several groups, and blocks of the local
        prefix are shared: there the load begins anew from what the prefix cache still has.
        """
        groups = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        if len(groups) > 1:
            return None
        (size,) = rewind.block_sizes(self._scheduler)
        local = max(request.num_computed_tokens - self._external_tokens(request), 0) // size
        found = invalid & set(groups[0][local:])
        return found if found and invalid.isdisjoint(groups[0][:local]) else None


def exports(scheduler: Any) -> bool:
    """Tell whether a connector may pass blocks on while their request still runs: it saves, or stands beside one that does."""
    transfer = scheduler.vllm_config.kv_transfer_config
    if transfer is None:
        return False
    return bool(transfer.is_kv_producer) or bool(getattr(scheduler.connector, "sub_connectors", None))
