"""What a standstill of an engine's scheduler does and who brings it about: who waits since when, and who holds the KV blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Evidence, words
from penstock.agent.sources import HOLDERS, blocks_by_holder, lease_row
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import snapshot_pb2 as snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.diagnosis.facts import Facts
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import HeldBlocks, QueuedRequest, SchedulerQueue

NO_CAPACITY: Final = "no_capacity"
SCHEDULER_KINDS: Final = frozenset({NO_CAPACITY, "scheduler_paused", "steps_without_tokens", "no_steps"})
"""Stalls of a scheduler: what its requests wait for is not what they are deferred for."""

# Why a load does not come.
_OF_LOADS: Final = frozenset(
    {
        "call_stuck",
        "load_not_started",
        "peer_evicts",
        "peer_fails",
        "peer_refuses",
        "peer_resets",
        "peer_slow",
        "peer_times_out",
        "thread_dead",
        "worker_silent",
    }
)
# By who holds most of the blocks: the causes of which an engine without room is the effect.
_BLAMED: Final[Mapping[int, frozenset[str]]] = {
    snapshots.BLOCK_HOLDER_LEASE: frozenset({"leases_wait", "leases_expire"}),
    snapshots.BLOCK_HOLDER_LOAD: _OF_LOADS,
    snapshots.BLOCK_HOLDER_PINNED: frozenset({"pinned_blocks"}),
    snapshots.BLOCK_HOLDER_ABORTED: frozenset({"aborted_loads_hold_blocks"}),
    snapshots.BLOCK_HOLDER_SAVE: frozenset({"saves_hold_blocks"}),
}
# Holders that evidence names.
_NAMED: Final = 4


def is_sure(stall: admin.Stall, age: float) -> bool:
    """Return whether a standstill is none that ends by itself at once."""
    return stall.kind != NO_CAPACITY or age >= limits.CAPACITY_SURE_SECONDS


def waited_seconds(facts: Facts, key: EngineKey, stall: admin.Stall) -> float:
    """Return how long the requests of a standstill have waited for its end, as far as they are named."""
    queue, since = facts.queues.get(key), stall.since.ToNanoseconds()
    if queue is None:
        return 0.0
    starts = (
        max(since, each.arrival_time_unix_nano) for each in queue.requests if _stands(each, queue, stall.kind)
    )
    return sum(max(0, facts.now - start) for start in starts) / NANOS


def _stands(request: QueuedRequest, queue: SchedulerQueue, kind: str) -> bool:
    """Return whether a request waits for the end of a standstill."""
    if kind == NO_CAPACITY:
        return request.waiting == snapshots.QUEUE_REASON_CAPACITY
    if not request.waiting:
        return queue.pause != snapshots.SCHEDULER_PAUSE_NEW
    return request.waiting != snapshots.QUEUE_REASON_STREAMING_INPUT


def queue_evidence(
    facts: Facts, key: EngineKey, stall: admin.Stall, engine: admin.Engine
) -> Iterator[Evidence]:
    """Yield what the scheduler has, and who holds blocks of its cache."""
    queue = engine.queue
    waiting = ", ".join(
        f"{row.count} for {label(snapshots.QueueReason, row.reason).replace('_', ' ')}"
        for row in queue.waiting
        if row.count
    )
    yield Evidence(
        f"{words.count(queue.running, 'request runs', 'requests run')}; waiting: {waiting or 'none'}"
    )
    if stall.kind != NO_CAPACITY:
        return
    rows = sorted(_rows(facts, key, engine), key=lambda row: -row.blocks)
    for row in rows[:_NAMED]:
        peer = f" with {words.peer(row.peer.address)}" if row.peer.address else ""
        begun = row.oldest_start_time_unix_nano
        oldest = f", the oldest for {words.span(max(0.0, (facts.now - begun) / NANOS))}" if begun else ""
        requests = f" of {words.count(row.requests, 'request')}" if row.requests else ""
        yield Evidence(
            f"{HOLDERS.get(row.holder, 'others')}{peer} hold {words.count(row.blocks, 'block')}{requests}{oldest}"
        )


def blamed_kinds(facts: Facts, key: EngineKey, stall: admin.Stall, engine: admin.Engine) -> frozenset[str]:
    """Return the kinds of causes of which a standstill is the effect, where they are about the same engine."""
    holders = blocks_by_holder(_rows(facts, key, engine)) if stall.kind == NO_CAPACITY else {}
    return _BLAMED.get(next(iter(holders), 0), frozenset())


def _rows(facts: Facts, key: EngineKey, engine: admin.Engine) -> Iterator[HeldBlocks]:
    found: dict[tuple[int, str], HeldBlocks] = {}
    for each in facts.held:
        place = (each.blocks.holder, each.blocks.peer.address)
        # Processes of an engine hold the same blocks.
        if each.key == key and (place not in found or found[place].blocks < each.blocks.blocks):
            found[place] = each.blocks
    if engine.leases.blocks:
        found[snapshots.BLOCK_HOLDER_LEASE, ""] = lease_row(engine.leases)
    yield from (row for row in found.values() if row.blocks)


def starved_words(engine: admin.Engine) -> str:
    """Return that nothing runs in an engine without room, as the rest of a sentence about its blocks; else nothing."""
    waiting = sum(stall.count for stall in engine.stalls if stall.kind == NO_CAPACITY)
    if not waiting:
        return ""
    return f"; nothing runs there, and {words.count(waiting, 'request waits', 'requests wait')} for KV blocks"
