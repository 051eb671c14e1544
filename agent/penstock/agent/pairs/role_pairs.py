"""Which engines may become pairs by their roles, the worst first, without looking at each two of them. Pure.

Engines of one kind are the same to every peer, so kinds are compared, and their engines are counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.pairs.verdict import POOL_LABEL, REVISION_LABEL, WEIGHTS_LABEL, compare_sides, family_of
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ROLE_BOTH, ROLE_DECODE, ROLE_PREFILL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Of one list: 65,536 comparisons of engines that tell little, less of those that tell much.
_EFFORT: Final = 1 << 20
_COMPARISON: Final = 16
# What of an engine tells it from others that are the same to every peer.
_OWN_FACTS: Final = (
    "kv_engine_id",
    "side_channel",
    "ec_address",
    "start_time_unix_nano",
    "num_gpu_blocks",
    "labels",
)
_JUDGED_LABELS: Final = (POOL_LABEL, REVISION_LABEL, WEIGHTS_LABEL)


class Badness(NamedTuple):
    """How bad a pair is, by what its two sides are; the worst first."""

    compatible: int
    effect: int


class Comparisons:
    """The engines of one list, by what they are to others, and what was compared of them."""

    def __init__(self, engines: Sequence[admin.PairEngine], effort: int = _EFFORT) -> None:
        """Sort *engines* into kinds; *effort* bounds the comparisons, of which each costs 16 or more."""
        self._engines = engines
        self._left = effort
        kinds: dict[bytes, int] = {}
        self.kinds = [kinds.setdefault(_kind(engine), len(kinds)) for engine in engines]
        """The kind of each engine: those of one kind differ in nothing that a comparison looks at."""
        self._known: dict[tuple[int, int, bool], Badness] = {}

    def spend(self, effort: int = 1) -> bool:
        """Whether there is effort left; it is spent."""
        self._left -= effort
        return self._left >= 0

    def badness(self, decode: int, prefill: int, *, connected: bool = False) -> Badness | None:
        """Return how bad two engines are together, by their indices; None once the effort is spent."""
        key = self.kinds[decode], self.kinds[prefill], connected
        found = self._known.get(key)
        if found is None:
            sides = self._engines[decode], self._engines[prefill]
            told = sum(len(side.facts.compatibility_factors) + len(side.transfers) for side in sides)
            if not self.spend(_COMPARISON + told):
                return None
            verdict = compare_sides(*sides, connected=connected)
            worst = max((each.effect for each in verdict.differences), default=0)
            found = self._known[key] = Badness(-verdict.compatible, -worst)
        return found


def _kind(engine: admin.PairEngine) -> bytes:
    kind = admin.PairEngine(role=engine.role, facts=engine.facts)
    for name in _OWN_FACTS:
        kind.facts.ClearField(name)
    for name in _JUDGED_LABELS:
        if name in engine.labels:
            kind.labels[name] = engine.labels[name]
    for layout in sorted({facts.kv_layout for facts in engine.transfers}):
        kind.transfers.add(kv_layout=layout)
    return kind.SerializeToString(deterministic=True)


_READS: Final = (ROLE_DECODE, ROLE_BOTH)
_WRITES: Final = (ROLE_PREFILL, ROLE_BOTH)

_Group = tuple[str, str]


def ordered(engines: Sequence[admin.PairEngine], index: int, other: int) -> tuple[int, int]:
    """Return the two engines of a pair, the one that computes with the blocks first; the same whichever is given first."""
    writes = engines[index].role == ROLE_PREFILL or engines[other].role == ROLE_DECODE
    reads = engines[index].role == ROLE_DECODE or engines[other].role == ROLE_PREFILL
    if reads == writes:  # two of one role, or without one
        return min(index, other), max(index, other)
    return (index, other) if reads else (other, index)


def may_pair(decode: admin.PairEngine, prefill: admin.PairEngine) -> bool:
    """Whether two engines may become a pair: of one model, connector and pool, and of roles that fit in this order."""
    group = _group(decode)
    return group is not None and group == _group(prefill) and _fits(decode, prefill)


def count_pairs(engines: Sequence[admin.PairEngine]) -> int:
    """Return how many pairs of *engines* may become some."""
    count = 0
    for members in _groups(engines).values():
        reading, writing, either = (
            Counter(_pool(engines[index]) for index in members if engines[index].role == role)
            for role in (ROLE_DECODE, ROLE_PREFILL, ROLE_BOTH)
        )
        count += _together(reading, writing) + _together(reading, either) + _together(either, writing)
        # Two of these are one pair, and none is one with itself.
        count += (_together(either, either) - either.total()) // 2
    return count


def _together(one: Counter[str], other: Counter[str]) -> int:
    """Return how many pairs of two sides there are that are not of two pools; the engines are counted by pool."""
    pooled, peers = one.total() - one[""], other.total() - other[""]
    same = sum(count * other[pool] for pool, count in one.items() if pool)
    return one.total() * other.total() - pooled * peers + same


def worst_pairs(
    engines: Sequence[admin.PairEngine], names: Sequence[str], comparisons: Comparisons
) -> Iterator[tuple[Badness, int, int]]:
    """Yield pairs that may become some, the worst first, equal ones by the *names* of the engines.

    Those that the effort of *comparisons* does not suffice for are left out; of kinds with few engines.
    """
    members: dict[int, list[int]] = {}
    for index in sorted(range(len(engines)), key=names.__getitem__):
        members.setdefault(comparisons.kinds[index], []).append(index)
    found: dict[Badness, dict[int, list[int]]] = {}
    for badness, decode, prefill in _kinds_together(engines, members, comparisons):
        found.setdefault(badness, {}).setdefault(decode, []).append(prefill)
    for badness in sorted(found):
        yield from ((badness, *each) for each in _named_pairs(engines, names, members, found[badness]))


def _kinds_together(
    engines: Sequence[admin.PairEngine], members: Mapping[int, Sequence[int]], comparisons: Comparisons
) -> Iterator[tuple[Badness, int, int]]:
    """Yield the kinds of decode and prefill sides, and how bad they are together."""
    groups = _groups(engines, sorted(each[0] for each in members.values()))
    ends = {kind: (min(each), max(each)) for kind, each in members.items()}

    def some(decode: int, prefill: int) -> bool:
        # Of two that may be either, the first reads.
        either = engines[decode].role == engines[prefill].role
        return not either or ends[comparisons.kinds[decode]][0] < ends[comparisons.kinds[prefill]][1]

    # What one agent makes up is in a group of its own, or each engine is of another kind: it is last.
    for group in sorted(groups.values(), key=len):
        kinds = sorted(group, key=lambda index: -len(members[comparisons.kinds[index]]))
        for place, one in enumerate(kinds):
            for other in kinds[place:]:
                if not comparisons.spend():
                    return
                for decode, prefill in dict.fromkeys(((one, other), (other, one))):
                    if not (_fits(engines[decode], engines[prefill]) and some(decode, prefill)):
                        continue
                    badness = comparisons.badness(decode, prefill)
                    if badness is None:
                        return
                    yield badness, comparisons.kinds[decode], comparisons.kinds[prefill]


def _named_pairs(
    engines: Sequence[admin.PairEngine],
    names: Sequence[str],
    members: Mapping[int, Sequence[int]],
    kinds: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of the kinds of decode sides with those of their prefill sides, by the names of their engines."""
    peers = {
        decode: sorted((index for kind in prefills for index in members[kind]), key=names.__getitem__)
        for decode, prefills in kinds.items()
    }
    sides = ((index, peers[kind]) for kind in kinds for index in members[kind])
    for decode, prefills in sorted(sides, key=lambda side: names[side[0]]):
        for prefill in prefills:
            if decode < prefill or engines[decode].role != engines[prefill].role:
                yield decode, prefill


def _groups(
    engines: Sequence[admin.PairEngine], indices: Sequence[int] | None = None
) -> dict[_Group, list[int]]:
    groups: dict[_Group, list[int]] = {}
    for index in range(len(engines)) if indices is None else indices:
        if (group := _group(engines[index])) is not None:
            groups.setdefault(group, []).append(index)
    return groups


def _group(engine: admin.PairEngine) -> _Group | None:
    """Return the model and the family of connectors; None for an engine without one."""
    connector = engine.facts.kv_connector
    return (engine.facts.model, family_of(connector)) if connector else None


def _fits(decode: admin.PairEngine, prefill: admin.PairEngine) -> bool:
    if decode.role not in _READS or prefill.role not in _WRITES:
        return False
    pools = _pool(decode), _pool(prefill)
    return not all(pools) or pools[0] == pools[1]


def _pool(engine: admin.PairEngine) -> str:
    return engine.labels.get(POOL_LABEL, "")
