"""How bad two engines are for each other, computed once for all engines that are alike, and not for ever. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.pairs.side_facts import POOL_LABEL, REVISION_LABEL, WEIGHTS_LABEL
from penstock.agent.pairs.verdict import compare_sides
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of one list: 65,536 comparisons of engines that tell little, less of those that tell much.
_EFFORT: Final = 1 << 20
_COMPARISON: Final = 16
# What of an engine tells it from others that are the same to every peer.
_OWN_FACTS: Final = ("kv_engine_id", "side_channel", "start_time_unix_nano", "num_gpu_blocks", "labels")
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
