"""Rewinds requests that computed on KV or encoder outputs which never arrived: the taint's spread, and vLLM's own way back.

vLLM's own recompute of a synchronous load breaks under async scheduling, and gives wrong tokens to a request that shares
the blocks: it lets the first sharer recompute and takes the blocks for good already. Here every request that holds a
tainted block goes back, the tainted blocks leave the prefix cache, and vLLM's own preemption does the rest: no token
count is edited. :func:`spread` is pure; :func:`evict` and :func:`preempt` act on a scheduler.
The steps whose result is not in are kept as :class:`UnconfirmedSteps`, with the blocks that requests have lost meanwhile
(:class:`FreedBlocks`).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.instrumentation.vllm.compat import child_connectors, preempt_dropping
from penstock.rules import Outcome

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.rules import Decision

NO_BLOCK: Final = -1
"""In the place of vLLM's null block, which stands for no content and is shared by all."""


@dataclass(frozen=True, slots=True)
class BlockHolder:
    """A request and the blocks it holds: one sequence of block ids for each KV cache group, in the order of its tokens."""

    request_id: str
    blocks: tuple[Sequence[int], ...]


@dataclass(frozen=True, slots=True)
class Taint:
    """What invalid blocks have spoiled.

    Attributes:
        starts: the first tainted token of each tainted request.
        direct: the tainted requests that hold an invalid block themselves or began the taint; the others share with one of them.
        blocks: ids of the tainted blocks, by KV cache group.

    """

    starts: dict[str, int]
    direct: frozenset[str]
    blocks: tuple[frozenset[int], ...]


_NOWHERE: Final[Mapping[str, int]] = {}


def spread(
    holders: Sequence[BlockHolder],
    invalid: AbstractSet[int],
    block_sizes: Sequence[int],
    seeds: Mapping[str, int] = _NOWHERE,
) -> Taint:
    """Return all that is tainted by the *invalid* blocks, and by the *seeds*.

    A request is tainted from its first tainted block on, in all groups, because every later token has attended to
    that one; a request that shares any of its later blocks is tainted too. Blocks go as a whole. vLLM gives the ids of invalid blocks without their
    groups, so an id counts in every group: with several groups this may take in a request too many, never one too few.

    Args:
        holders: all requests that hold blocks.
        invalid: ids of the blocks whose load failed.
        block_sizes: tokens of a block, by group.
        seeds: requests that computed on something bad (not on a block), and the first token at which they did.

    """
    tainted = [set(invalid) - {NO_BLOCK} for _ in block_sizes]
    starts: dict[str, int] = {}
    growing = True
    while growing:
        growing = False
        for holder in holders:
            start = _first_tainted(holder, tainted, block_sizes)
            seed = seeds.get(holder.request_id)
            if seed is not None:
                start = seed if start is None else min(start, seed)
            if start is None or start >= starts.get(holder.request_id, start + 1):
                continue
            starts[holder.request_id] = start
            growing = True
            for blocks, group, size in zip(holder.blocks, tainted, block_sizes, strict=True):
                group.update(blocks[start // size :])
                group.discard(NO_BLOCK)
    direct = frozenset(
        holder.request_id
        for holder in holders
        if holder.request_id in seeds or any(not invalid.isdisjoint(blocks) for blocks in holder.blocks)
    )
    return Taint(starts, direct, tuple(frozenset(group) for group in tainted))


def _first_tainted(
    holder: BlockHolder, tainted: Sequence[AbstractSet[int]], block_sizes: Sequence[int]
) -> int | None:
    firsts = [
        index * size
        for blocks, group, size in zip(holder.blocks, tainted, block_sizes, strict=True)
        for index in (next((index for index, block in enumerate(blocks) if block in group), None),)
        if index is not None
    ]
    return min(firsts, default=None)


def block_sizes(scheduler: Any) -> list[int]:
    """Return the tokens of a block in each KV cache group, context parallelism included."""
    return [manager.block_size for manager in _managers(scheduler)]


def holders(scheduler: Any, requests: Iterable[Any]) -> list[BlockHolder]:
    """Return the blocks that *requests* hold in the scheduler now."""
    return [
        BlockHolder(
            request.request_id,
            tuple(
                [NO_BLOCK if block.is_null else block.block_id for block in group]
                for group in scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            ),
        )
        for request in requests
    ]


def evict(scheduler: Any, taint: Taint) -> None:
    """Take the tainted blocks out of the prefix cache, so that no request, the retry included, finds them again."""
    for manager, blocks in zip(_managers(scheduler), taint.blocks, strict=True):
        pool = manager.block_pool
        pool.evict_blocks({block for block in blocks if block < len(pool.blocks)})


def preempt(scheduler: Any, request: Any) -> None:
    """Send a running request back to the queue by vLLM's own preemption; what it has in flight is dropped.

    A worker that ran it in the last step gets all its tokens again.
    """
    scheduler.running.remove(request)
    preempt_dropping(scheduler, request, time.monotonic())
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def fail_instead(decision: Decision, why: str) -> Decision:
    """Return *decision* as a failure, for the reason *why*, where it is to recompute."""
    if decision.outcome is not Outcome.RECOMPUTED:
        return decision
    return replace(decision, outcome=Outcome.FAILED, reason=f"{decision.reason}; {why}")


def exports(scheduler: Any) -> bool:
    """Return whether a connector may pass blocks on while their request still runs: it saves, or stands beside one that does."""
    transfer = scheduler.vllm_config.kv_transfer_config
    if transfer is None:
        return False
    return bool(transfer.is_kv_producer) or bool(child_connectors(scheduler.connector))


def _managers(scheduler: Any) -> Sequence[Any]:
    managers: Sequence[Any] = scheduler.kv_cache_manager.coordinator.single_type_managers
    return managers


class FreedBlocks:
    """The blocks of a request that was preempted or ended."""

    def __init__(self, request_id: str, groups: Sequence[Sequence[Any]]) -> None:
        """Keep vLLM's blocks, *groups*, with the hashes that they have now."""
        self.request_id = request_id
        self._groups = [[(block, block.block_hash) for block in group] for group in groups]

    def holder(self, name: str) -> BlockHolder:
        """Return, under *name*, the blocks that still have the content that they had."""
        return BlockHolder(
            name,
            tuple(
                [
                    block.block_id
                    if not block.is_null and content is not None and block.block_hash == content
                    else NO_BLOCK
                    for block, content in group
                ]
                for group in self._groups
            ),
        )

    def first_token_in(self, invalid: AbstractSet[int], block_sizes: Sequence[int]) -> int | None:
        """Return the first token of the request that lay in an *invalid* block, whatever is in it now; None if none did."""
        return min(
            (
                index * size
                for group, size in zip(self._groups, block_sizes, strict=True)
                for index, (block, _) in enumerate(group)
                if not block.is_null and block.block_id in invalid
            ),
            default=None,
        )


def freed_by_name(freed: Iterable[FreedBlocks]) -> dict[str, FreedBlocks]:
    """Return *freed* under names that no request has: no request id holds a NUL."""
    return {f"{each.request_id}\0{number}": each for number, each in enumerate(freed)}


@dataclass(slots=True)
class UnconfirmedStep:
    """A step that loads something, and whose result is not in.

    Attributes:
        key: the object that its result comes with; None for a step that was not expected. When vLLM has dropped it, the step has failed:
            what its workers told comes with a later result, if at all (``ft_defer_kv_connector_outputs`` of 0.33).
        freed: blocks of requests that were preempted or ended since it was scheduled.

    """

    key: weakref.ref[Any] | None = None
    freed: list[FreedBlocks] = field(default_factory=list)


_Step = TypeVar("_Step", bound=UnconfirmedStep)


class UnconfirmedSteps(Generic[_Step]):
    """The unconfirmed steps of one scheduler; on its thread. It is true while there is one.

    Attributes:
        steps: the oldest first; always the same deque.

    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.steps: deque[_Step] = deque()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def before_free(self, request: Any) -> None:
        """Record the blocks of a request that is about to lose them."""
        if self.steps:
            blocks = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            freed = FreedBlocks(request.request_id, blocks)
            for step in self.steps:
                step.freed.append(freed)

    def confirm(self, key: Any) -> _Step | None:
        """Return the step with that *key*, and forget it and those before it; None if it is not known.

        Results come in the order in which the steps were scheduled. That of another step ends what waits for failed ones in front: what
        their workers told came with it.
        """
        if key is not None and any(_key_of(step) is key for step in self.steps):
            while _key_of(step := self.steps.popleft()) is not key:
                pass
            return step
        while self.steps and _key_of(self.steps[0]) is None:
            self.steps.popleft()
        return None


def _key_of(step: UnconfirmedStep) -> Any:
    return step.key() if step.key is not None else None
