"""What each engine did in the last 15 minutes, in slots of five seconds: requests, time to first token, bytes moved, its queue.

Entries count in the slot of their own time, so the state is the same for any order of the batches. Pure.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.batch import GATES, is_clean_up
from penstock.agent.durations import BOUNDS
from penstock.proto.names import NANOS
from penstock.proto.v1.common_pb2 import DIRECTION_SEND, TRANSFER_RESULT_OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.batch import BatchColumns, EventGroup
    from penstock.agent.model import EngineKey

SLOT_NANO: Final = 5 * NANOS
"""Width of a slot."""
KEPT_SLOTS: Final = 180
"""Slots that an engine has at most: 15 minutes."""
MAX_SIGNALLED: Final = 128
"""Engines that have slots; those of the others are not known. A busy one takes 150 KiB."""

_AHEAD_NANO: Final = 5 * 60 * NANOS
_GATES: Final = tuple(f"gates.{gate}_nano" for gate in GATES)
_RECOMPUTE: Final = "gates.recompute_nano"
_ABORTED, _FAILED = "abort", "error"


class QueueSample(NamedTuple):
    """What an engine has at a moment."""

    running: int
    waiting: int
    held_blocks: int
    total_blocks: int


class Moved(NamedTuple):
    """Transfers that succeeded in one direction, and their bytes."""

    transfers: int = 0
    bytes: int = 0


_NOTHING: Final = Moved()


@dataclass(slots=True)
class SignalSlot:
    """Five seconds of one engine.

    Attributes:
        requests: that ended, without clean-ups of vLLM's front end.
        failed: of them, those with the finish reason ``error``.
        recomputed: of them, those that had to compute tokens again before their first token.
        first_tokens: of them, those whose time to first token is known.
        gate_nano: the time of these at each of ``GATES``, in all.
        times: how many of these there are in each bucket of ``BOUNDS``.
        received: state that came into this engine.
        sent: state that it gave.
        queue: the newest; None where the engine was not seen, or does not tell of it.

    """

    requests: int = 0
    failed: int = 0
    recomputed: int = 0
    first_tokens: int = 0
    gate_nano: list[int] = field(default_factory=lambda: [0] * len(GATES))
    times: dict[int, int] = field(default_factory=dict)
    received: Moved = _NOTHING
    sent: Moved = _NOTHING
    queue: QueueSample | None = None


@dataclass(slots=True)
class _Kept:
    slots: dict[int, SignalSlot] = field(default_factory=dict)
    newest: int = 0


class Signals:
    """The slots of all engines; not thread-safe.

    Args:
        cap: engines that have slots at most; a new one replaces the one that was idle longest, if its slots are over.
        clock: nanoseconds since the epoch.

    """

    def __init__(self, cap: int = MAX_SIGNALLED, clock: Callable[[], int] = time.time_ns) -> None:
        self._cap = cap
        self._clock = clock
        self._engines: dict[EngineKey, _Kept] = {}
        # Nothing can be idle before this slot: keeps engines without room from scanning each time.
        self._none_idle_before = 0

    def apply(self, key: EngineKey, contents: BatchColumns) -> None:
        """Count a batch of an engine. It has passed the limits of the ingest."""
        latest = self._clock() + _AHEAD_NANO
        closed = contents.groups.get("request_closed")
        if closed is not None:
            self._count_closed(key, closed, latest)
        if len(contents.transfers):
            self._count_transfers(key, contents, latest)

    def note(self, key: EngineKey, when: int, queue: QueueSample | None) -> None:
        """Note that an engine was seen at *when*, nanoseconds by its clock, and what it had; None if it does not tell."""
        # Entries of such a clock are left out: that it was seen would say that it did nothing.
        if when > self._clock() + _AHEAD_NANO:
            return
        slot = self._slot(key, when // SLOT_NANO)
        if slot is not None:
            slot.queue = queue

    def slots(self, key: EngineKey, first: int, last: int) -> dict[int, SignalSlot]:
        """Return copies of the known slots of an engine from the index *first* to *last*, both included.

        A slot is known if the engine was seen in it, or has an entry in it.
        """
        kept = self._engines.get(key)
        if kept is None:
            return {}
        return {index: _copy(slot) for index, slot in sorted(kept.slots.items()) if first <= index <= last}

    def knows(self, key: EngineKey) -> bool:
        """Return whether an engine has slots, or room for them."""
        return key in self._engines or len(self._engines) < self._cap

    def forget(self, key: EngineKey) -> None:
        """Drop an engine."""
        self._engines.pop(key, None)

    def _slot(self, key: EngineKey, index: int) -> SignalSlot | None:
        """Return the slot of an index; None for one that is too old, and of an engine for which there is no room."""
        kept = self._engines.get(key)
        if kept is None:
            if len(self._engines) >= self._cap and not self._drop_idle(index):
                return None
            kept = self._engines[key] = _Kept()
        slot = kept.slots.get(index)
        if slot is None:
            if index <= kept.newest - KEPT_SLOTS:
                return None
            if index > kept.newest:
                kept.newest = index
                for old in [each for each in kept.slots if each <= index - KEPT_SLOTS]:
                    del kept.slots[old]
            slot = kept.slots[index] = SignalSlot()
        return slot

    def _drop_idle(self, now: int) -> bool:
        if now < self._none_idle_before:
            return False
        oldest = min(self._engines, key=lambda key: self._engines[key].newest)
        over = self._engines[oldest].newest + KEPT_SLOTS
        if now < over:
            self._none_idle_before = over
            return False
        del self._engines[oldest]
        return True

    def _count_closed(self, key: EngineKey, group: EventGroup, latest: int) -> None:
        reasons = group.column("finish_reason")
        times = _times_of_all(group) if _ABORTED not in reasons and _same_slot(group.times, latest) else None
        if times is None:
            self._count_one_by_one(key, group, latest)
            return
        slot = self._slot(key, group.newest // SLOT_NANO)
        if slot is None:
            return
        slot.requests += len(group)
        slot.failed += reasons.count(_FAILED)
        if times:
            again = group.present(_RECOMPUTE) or ()
            slot.recomputed += len(again) - again.count(0)
            slot.first_tokens += len(times)
            for place, name in enumerate(_GATES):
                slot.gate_nano[place] += sum(group.present(name) or ())
            _add_times(slot, times)

    def _count_one_by_one(self, key: EngineKey, group: EventGroup, latest: int) -> None:
        for when, body in zip(group.times, group.bodies, strict=True):
            is_counted = 0 < when <= latest and not is_clean_up(body)
            slot = self._slot(key, when // SLOT_NANO) if is_counted else None
            if slot is None:
                continue
            slot.requests += 1
            slot.failed += body.finish_reason == _FAILED
            slot.recomputed += bool(body.gates.recompute_nano)
            took = body.first_token_time_unix_nano - body.arrival_time_unix_nano
            if body.HasField("gates") and body.first_token_time_unix_nano and took > 0:
                slot.first_tokens += 1
                for place, gate in enumerate(GATES):
                    slot.gate_nano[place] += getattr(body.gates, f"{gate}_nano")
                _add_times(slot, (took,))

    def _count_transfers(self, key: EngineKey, contents: BatchColumns, latest: int) -> None:
        columns = contents.transfers
        ends, results, directions = columns["end_time_unix_nano"], columns["result"], columns["direction"]
        count = len(ends)
        moved: dict[tuple[int, bool], Moved] = {}
        if (
            _same_slot(ends, latest)
            and results.count(TRANSFER_RESULT_OK) == count
            and directions.count(directions[0]) == count
        ):
            place = ends[0] // SLOT_NANO, directions[0] == DIRECTION_SEND
            moved[place] = Moved(count, sum(columns["bytes"]))
        else:
            for end, result, direction, size in zip(ends, results, directions, columns["bytes"], strict=True):
                if result == TRANSFER_RESULT_OK and 0 < end <= latest:
                    place = end // SLOT_NANO, direction == DIRECTION_SEND
                    moved[place] = _sum(moved.get(place, _NOTHING), Moved(1, size))
        for (index, is_sent), more in moved.items():
            slot = self._slot(key, index)
            if slot is None:
                continue
            if is_sent:
                slot.sent = _sum(slot.sent, more)
            else:
                slot.received = _sum(slot.received, more)


def _same_slot(times: Sequence[int], latest: int) -> bool:
    oldest, newest = min(times), max(times)
    return oldest > 0 and newest <= latest and oldest // SLOT_NANO == newest // SLOT_NANO


def _times_of_all(group: EventGroup) -> Sequence[int] | None:
    """Return the times to first token, where each request has gates and one; none where none has gates; else None."""
    gates = [group.present(name) for name in _GATES]
    if None in gates:
        return None
    if not any(gates):
        return ()
    prefills, tokens, arrivals = (
        group.present(name) or ()
        for name in ("gates.own_prefill_nano", "first_token_time_unix_nano", "arrival_time_unix_nano")
    )
    if not len(prefills) == len(tokens) == len(arrivals) == len(group):
        return None
    times = list(map(sub, tokens, arrivals))
    return times if min(times) > 0 else None


def _copy(slot: SignalSlot) -> SignalSlot:
    return replace(slot, gate_nano=slot.gate_nano.copy(), times=slot.times.copy())


def _add_times(slot: SignalSlot, nanos: Iterable[int]) -> None:
    for bucket, number in Counter(bisect_left(BOUNDS, nano) for nano in nanos).items():
        slot.times[bucket] = slot.times.get(bucket, 0) + number


def _sum(one: Moved, other: Moved) -> Moved:
    return Moved(one.transfers + other.transfers, one.bytes + other.bytes)
