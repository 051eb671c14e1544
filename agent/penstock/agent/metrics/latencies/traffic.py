"""How much was moved to and from a peer in the last 15 minutes: transfers and bytes, by channel and direction.

Sums are exact: every transfer of a batch counts, once a batch where all of them are alike.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.agent.metrics.latencies.time_slots import FINEST_NANO, QUARTER, SUMS, TimeSlots
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.batch import BatchColumns

Way: TypeAlias = tuple[int, int]
"""``Channel`` and ``Direction`` of the wire, the latter as the engine sees it."""

WAYS: Final = frozenset(
    (channel, direction)
    for channel in (common.CHANNEL_KV, common.CHANNEL_EC, common.CHANNEL_EPLB)
    for direction in (common.DIRECTION_RECEIVE, common.DIRECTION_SEND)
)
"""What is summed: what an agent does not know takes no memory of it."""
_KEY: Final = ("channel", "direction", "peer", "result")


class TrafficSum(NamedTuple):
    """Sums of transfers.

    Attributes:
        ok: successful ones.
        failed: the others.
        sized: successful ones that told their size; the sizes of the others are not known.
        bytes: of the former.

    """

    ok: int = 0
    failed: int = 0
    sized: int = 0
    bytes: int = 0


_SIZE: Final = len(TrafficSum._fields)


class Traffic:
    """The sums of one peer, of 15 to 20 minutes; at most 6 KiB for each channel and direction that is used."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[Way, TimeSlots] = {}

    @property
    def newest(self) -> int:
        """Time of the newest transfer, nanoseconds; 0 for none."""
        return max((slots.newest for slots in self._slots.values()), default=0)

    def add(self, time: int, ways: Mapping[Way, TrafficSum]) -> None:
        """Add what was moved at *time*, nanoseconds."""
        for way, moved in ways.items():
            slots = self._slots.get(way)
            if slots is None:
                if way not in WAYS:
                    continue
                slots = self._slots[way] = TimeSlots(_SIZE, QUARTER, SUMS)
            slots.add(time, dict(enumerate(moved)))

    def sum(self, after: int, until: int) -> dict[Way, TrafficSum]:
        """Return the sums of the slots that end after *after* and not after *until*, nanoseconds."""
        return {way: TrafficSum(*slots.sum(after, until)) for way, slots in self._slots.items()}

    def dump(self) -> list[Any]:
        """Return the state for JSON."""
        return [[*way, slots.dump()] for way, slots in sorted(self._slots.items())]

    @classmethod
    def load(cls, rows: Iterable[Any]) -> Traffic:
        """Return what :meth:`dump` described.

        Raises:
            ValueError, TypeError, LookupError, OverflowError: it is of another shape.

        """
        found = cls()
        for channel, direction, state in rows:
            if (channel, direction) in WAYS:
                found._slots[channel, direction] = TimeSlots.load(_SIZE, state, QUARTER, SUMS)
        return found


def moved(contents: BatchColumns, latest: int) -> dict[tuple[int, int], dict[Way, TrafficSum]]:
    """Return what the transfers of a batch moved, by peer (its place in the table of strings) and finest slot of time.

    Left out: ends after *latest*, nanoseconds.
    """
    columns = contents.transfers
    if not len(columns):
        return {}
    ends, sizes = columns["end_time_unix_nano"], columns["bytes"]
    keys = [columns[name] for name in _KEY]
    if (newest := max(ends)) > latest:
        known = [end <= latest for end in ends]
        ends, sizes, *keys = (list(compress(column, known)) for column in (ends, sizes, *keys))
        if not ends:
            return {}
        newest = max(ends)
    slot, count = newest // FINEST_NANO, len(ends)
    is_one = slot == min(ends) // FINEST_NANO
    if is_one and all(column.count(column[0]) == count for column in keys):
        # One connector moves to or from one peer: most batches of a worker.
        channel, direction, peer, result = (column[0] for column in keys)
        return {(peer, slot): {(channel, direction): _summed(result, sizes)}}
    slots = [slot] * count if is_one else [end // FINEST_NANO for end in ends]
    by_key: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for key, size in zip(zip(*keys, slots, strict=True), sizes, strict=True):
        by_key[key].append(size)
    found: dict[tuple[int, int], dict[Way, TrafficSum]] = {}
    for (channel, direction, peer, result, slot), some in by_key.items():
        ways = found.setdefault((peer, slot), {})
        before = ways.get((channel, direction), TrafficSum())
        both = zip(before, _summed(result, some), strict=True)
        ways[channel, direction] = TrafficSum(*map(sum, both))
    return found


def _summed(result: int, sizes: list[int]) -> TrafficSum:
    if result != TRANSFER_RESULT_OK:
        return TrafficSum(failed=len(sizes))
    return TrafficSum(ok=len(sizes), sized=len(sizes) - sizes.count(0), bytes=sum(sizes))
