"""What engines did lately, in slots of five seconds: sampled, summed over engines, and over the agents of a relay."""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import add, attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

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
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.agent.admin.lookups.context import AgentContext
    from penstock.agent.metrics import Aggregator, SignalSlot
    from penstock.agent.sources import EngineView
    from penstock.proto.v1.snapshot_pb2 import SchedulerQueue, Snapshot

_log = structlog.get_logger(__name__)

# Two looks fall into each slot, so that one which comes late leaves none without.
_LOOK_SECONDS: Final = 2.0
# What an engine's entries take on their way, at most, while all is well.
_SETTLED_NANO: Final = 1_000_000_000
# A process reports once a second.
_FRESH_NANO: Final = 5_000_000_000
# Slots by which the newest ones of agents may be apart: they are asked at the same time, and one may be late.
_APART: Final = 2
_COUNTED: Final = (
    "engines", "requests", "failed", "recomputed", "first_tokens", "loads_in", "bytes_in", "loads_out", "bytes_out",
    "queues", "running", "waiting", "held_blocks", "total_blocks",
)  # fmt: skip
_SMALL: Final = frozenset({"engines", "queues"})
_MOST: Final = (1 << 64) - 1
_NO_QUEUE: Final = (0, 0, 0, 0)
_read_counts: Final = attrgetter(*_COUNTED)
_read_gates: Final = attrgetter(*(f"{gate}_nano" for gate in GATES))


async def keep_sampling(agent: AgentContext) -> None:
    """Note every two seconds what each connected engine has; until cancelled."""
    while True:
        try:
            note_queues(agent.aggregator, agent.registry.engines(), int(agent.clock() * 1e9))
        except Exception:  # noqa: BLE001  (a look that fails leaves a slot that is not known)
            _log.exception("the queues of engines cannot be sampled; please report it")
        await asyncio.sleep(_LOOK_SECONDS)


def note_queues(aggregator: Aggregator, views: Sequence[EngineView], now: int) -> None:
    """Note what each connected engine has at *now*, nanoseconds by the agent's clock.

    One that is paused reports nothing, and one whose processes are silent may do anything: that is not known.
    """
    ahead = clock_offsets(views)
    for view in views:
        snapshots = [
            live.snapshot
            for live in view.sources
            if live.connected and live.snapshot is not None and now - live.last_seen_unix_nano <= _FRESH_NANO
        ]
        if snapshots and view.connected and not view.paused:
            aggregator.note_queue(view.key, now + ahead.get(view.key, 0), _sample(snapshots))


def _sample(snapshots: Sequence[Snapshot]) -> QueueSample | None:
    queues: list[SchedulerQueue] = [each.queue for each in snapshots if each.HasField("queue")]
    if not queues:
        return None
    held = blocks_by_holder(row for snapshot in snapshots for row in held_rows(snapshot))
    return QueueSample(
        sum(each.running for each in queues),
        sum(row.count for each in queues for row in each.waiting),
        sum(held.values()),
        sum(each.total_blocks for each in queues),
    )


class _Total:
    """What several engines did in one slot; whole numbers of any size."""

    __slots__ = ("_counts", "_gates", "_slot", "_times")

    def __init__(self, start: int) -> None:
        self._slot = admin.SignalSlot(start_unix_nano=start)
        self._counts = [0] * len(_COUNTED)
        self._gates = [0] * len(GATES)
        self._times: Counter[int] = Counter()

    def add(self, counts: Iterable[int], gates: Iterable[int], times: Mapping[int, int]) -> None:
        """Add a slot: the values of ``_COUNTED`` and of ``GATES``, and how many times there are in each bucket."""
        self._counts = list(map(add, self._counts, counts))
        self._gates = list(map(add, self._gates, gates))
        for bucket, number in times.items():
            # The last one has no bound: what a newer agent has above it is in it, too.
            self._times[min(bucket, BUCKETS - 1)] += number

    def message(self) -> admin.SignalSlot:
        """Return the sums, as far as the fields hold them."""
        for name, value in zip(_COUNTED, self._counts, strict=True):
            setattr(self._slot, name, clamp_unsigned(value, MAX_UINT32 if name in _SMALL else _MOST))
        for gate, nano in zip(GATES, self._gates, strict=True):
            setattr(self._slot.gates, f"{gate}_nano", clamp_unsigned(nano))
        for bucket, number in self._times.items():
            self._slot.times[bucket] = clamp_unsigned(number)
        return self._slot


class _Totals(dict[int, _Total]):
    """By the start of their slots, nanoseconds."""

    def __missing__(self, start: int) -> _Total:
        self[start] = _Total(start)
        return self[start]

    def messages(self) -> list[admin.SignalSlot]:
        """Return them in the order of time."""
        return [self[start].message() for start in sorted(self)]


def signals_of(aggregator: Aggregator, views: Sequence[EngineView], since: int, now: int) -> admin.Signals:
    """Return what the engines of *views* did together from *since* on (0 for the last 15 minutes). On a thread of its own.

    The newest slot is the last one that ended a second before *now*, both in nanoseconds by the agent's clock.
    """
    let_go = ThreadYield()
    last = (now - _SETTLED_NANO) // SLOT_NANO - 1
    first = max(-(-since // SLOT_NANO), last - KEPT_SLOTS + 1)
    ahead = clock_offsets(views)
    totals = _Totals()
    left_out = 0
    for view in views:
        let_go()
        # Entries have the engine's time.
        moved = round(ahead.get(view.key, 0) / SLOT_NANO)
        known = aggregator.signals(view.key, first + moved, last + moved)
        left_out += known is None
        for index, slot in (known or {}).items():
            totals[(index - moved) * SLOT_NANO].add(_counts(slot), slot.gate_nano, slot.times)
    return admin.Signals(
        slot_nano=SLOT_NANO, engines=len(views), engines_left_out=left_out, slots=totals.messages()
    )


def _counts(slot: SignalSlot) -> tuple[int, ...]:
    """Return the values of ``_COUNTED`` of one engine."""
    queue = slot.queue
    return (
        1, slot.requests, slot.failed, slot.recomputed, slot.first_tokens,
        *slot.received, *slot.sent, queue is not None, *(queue or _NO_QUEUE),
    )  # fmt: skip


class AgentSignals(NamedTuple):
    """What one agent answers, and its clock minus ours, nanoseconds."""

    answer: admin.Signals
    ahead: int = 0


def sum_signals(said: Iterable[AgentSignals], now: int) -> admin.Signals:
    """Return what several agents say together, in the slots of our clock.

    Left out are slots that cannot be at *now*, nanoseconds, and the newest ones that an agent which answers in time has not told yet.
    """
    engines = left_out = 0
    totals = _Totals()
    newest: list[int] = []
    last = now // SLOT_NANO
    for answer, ahead in said:
        engines += answer.engines
        left_out += answer.engines_left_out
        moved, told = round(ahead / SLOT_NANO), 0
        # An agent with slots of another width would be another version; its sums fit no slot of ours.
        for slot in answer.slots if answer.slot_nano == SLOT_NANO else ():
            index = slot.start_unix_nano // SLOT_NANO - moved
            if last - KEPT_SLOTS - _APART <= index <= last:
                told = max(told, index)
                totals[index * SLOT_NANO].add(_read_counts(slot), _read_gates(slot.gates), slot.times)
        newest.append(told)
    first_last = min((each for each in newest if each >= max(newest) - _APART), default=0)
    return admin.Signals(
        slot_nano=SLOT_NANO,
        engines=clamp_unsigned(engines, MAX_UINT32),
        engines_left_out=clamp_unsigned(left_out, MAX_UINT32),
        slots=[slot for slot in totals.messages() if slot.start_unix_nano <= first_last * SLOT_NANO],
    )
