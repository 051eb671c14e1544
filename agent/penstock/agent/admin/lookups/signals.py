"""What engines did lately, in slots of five seconds: sampled, summed over engines, and over the agents of a relay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from penstock.agent.admin.lookups.known_peers import clock_offsets
from penstock.agent.admin.lookups.messages import MAX_UINT32, clamp_unsigned
from penstock.agent.aio import ThreadYield
from penstock.agent.batch import GATES
from penstock.agent.durations import BUCKETS
from penstock.agent.metrics import KEPT_SLOTS, SLOT_NANO, QueueSample
from penstock.agent.sources import blocks_by_holder, held_rows
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.metrics import Aggregator, SignalSlot
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import SchedulerQueue

_log = structlog.get_logger(__name__)

# Two looks fall into each slot, so that one which comes late leaves none without.
_LOOK_SECONDS: Final = 2.0
# What an engine's entries take on their way, at most, while all is well.
_SETTLED_NANO: Final = 1_000_000_000
_COUNTS: Final = ("engines", "queues")
_SUMMED: Final = (
    "requests",
    "failed",
    "recomputed",
    "first_tokens",
    "loads_in",
    "bytes_in",
    "loads_out",
    "bytes_out",
    "running",
    "waiting",
    "held_blocks",
    "total_blocks",
)


async def keep_sampling(agent: AgentContext) -> None:
    """Note every two seconds what each connected engine has; until cancelled."""
    while True:
        try:
            note_queues(agent.aggregator, agent.registry.engines(), int(agent.clock() * 1e9))
        except Exception:  # noqa: BLE001  (a look that fails leaves a slot that is not known)
            _log.exception("the queues of engines cannot be sampled; please report it")
        await asyncio.sleep(_LOOK_SECONDS)


def note_queues(aggregator: Aggregator, views: Sequence[EngineView], now: int) -> None:
    """Note what each connected engine has at *now*, nanoseconds by the agent's clock."""
    ahead = clock_offsets(views)
    for view in views:
        if view.connected:
            aggregator.note_queue(view.key, now + ahead.get(view.key, 0), _sample(view))


def _sample(view: EngineView) -> QueueSample:
    snapshots = [live.snapshot for live in view.sources if live.connected and live.snapshot is not None]
    queues: list[SchedulerQueue] = [each.queue for each in snapshots if each.HasField("queue")]
    if not queues:
        return QueueSample()
    held = blocks_by_holder(row for snapshot in snapshots for row in held_rows(snapshot))
    return QueueSample(
        sum(each.running for each in queues),
        sum(row.count for each in queues for row in each.waiting),
        sum(held.values()),
        sum(each.total_blocks for each in queues),
    )


def signals_of(aggregator: Aggregator, views: Sequence[EngineView], since: int, now: int) -> admin.Signals:
    """Return what the engines of *views* did together from *since* on (0 for the last 15 minutes). On a thread of its own.

    The newest slot is the last one that ended a second before *now*, both in nanoseconds by the agent's clock.
    """
    let_go = ThreadYield()
    last = (now - _SETTLED_NANO) // SLOT_NANO - 1
    first = max(-(-since // SLOT_NANO), last - KEPT_SLOTS + 1)
    ahead = clock_offsets(views)
    summed: dict[int, admin.SignalSlot] = {}
    answer = admin.Signals(slot_nano=SLOT_NANO, engines=len(views))
    for view in views:
        let_go()
        # Entries have the engine's time.
        moved = round(ahead.get(view.key, 0) / SLOT_NANO)
        known = aggregator.signals(view.key, first + moved, last + moved)
        answer.engines_left_out += known is None
        for index, slot in (known or {}).items():
            start = (index - moved) * SLOT_NANO
            found = summed.get(start)
            if found is None:
                found = summed[start] = admin.SignalSlot(start_unix_nano=start)
            _add(found, _message(slot))
    answer.slots.extend(summed[start] for start in sorted(summed))
    return answer


def sum_signals(answers: Iterable[admin.Signals]) -> admin.Signals:
    """Return what several agents say together, by the clock of each."""
    merged = admin.Signals()
    summed: dict[int, admin.SignalSlot] = {}
    for answer in answers:
        merged.slot_nano = SLOT_NANO
        merged.engines = clamp_unsigned(merged.engines + answer.engines, MAX_UINT32)
        merged.engines_left_out = clamp_unsigned(
            merged.engines_left_out + answer.engines_left_out, MAX_UINT32
        )
        # An agent with slots of another width would be another version; its sums fit no slot of ours.
        for slot in answer.slots if answer.slot_nano == SLOT_NANO else ():
            found = summed.get(slot.start_unix_nano)
            if found is None:
                found = summed[slot.start_unix_nano] = admin.SignalSlot(start_unix_nano=slot.start_unix_nano)
            _add(found, slot)
    merged.slots.extend(summed[start] for start in sorted(summed))
    return merged


def _message(slot: SignalSlot) -> admin.SignalSlot:
    found = admin.SignalSlot(
        engines=1,
        requests=slot.requests,
        failed=slot.failed,
        recomputed=slot.recomputed,
        first_tokens=slot.first_tokens,
        gates={f"{gate}_nano": nano for gate, nano in zip(GATES, slot.gate_nano, strict=True)},
        times=slot.times,
        loads_in=slot.received.transfers,
        bytes_in=slot.received.bytes,
        loads_out=slot.sent.transfers,
        bytes_out=slot.sent.bytes,
    )
    queue = slot.queue
    if queue is not None and queue.running is not None:
        found.queues, found.running, found.waiting = 1, queue.running, queue.waiting or 0
        found.held_blocks, found.total_blocks = queue.held_blocks or 0, queue.total_blocks or 0
    return found


def _add(total: admin.SignalSlot, slot: admin.SignalSlot) -> None:
    for name in _COUNTS:
        setattr(total, name, clamp_unsigned(getattr(total, name) + getattr(slot, name), MAX_UINT32))
    for name in _SUMMED:
        setattr(total, name, clamp_unsigned(getattr(total, name) + getattr(slot, name)))
    for gate in GATES:
        name = f"{gate}_nano"
        setattr(total.gates, name, clamp_unsigned(getattr(total.gates, name) + getattr(slot.gates, name)))
    for bucket, count in slot.times.items():
        # The last one has no bound: what a newer agent has above it is in it, too.
        place = min(bucket, BUCKETS - 1)
        total.times[place] = clamp_unsigned(total.times[place] + count)
