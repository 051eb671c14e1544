"""Gauges about one engine: what it is, which hooks fit it, which policy holds, what stalls in it, and how fast it transfers.

One value a label set, under a cap.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent.metrics.catalogue import from_snapshots
from penstock.agent.metrics.exposition import Family, Sample
from penstock.agent.metrics.series import CAP, boolean
from penstock.agent.pairs import POOL_LABEL, WEIGHTS_LABEL, revision_of
from penstock.agent.sources import engine_role
from penstock.proto.names import NANOS, label, words
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import policy_pb2 as policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.metrics.latencies import PairKey, Speed
    from penstock.agent.model import EngineKey, Source
    from penstock.agent.stalls import Stall
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

    Merge = Callable[[float, float], float]

    Values = dict[tuple[str, ...], float]

MIN: Final[Merge] = min
MAX: Final[Merge] = max


def add(left: float, right: float) -> float:
    """Return the sum."""
    return left + right


class GaugeSet:
    """The gauges of one scrape.

    A metric of an engine shows at most *cap* label sets, the first in order. The rest is merged into
    ``__other__`` where the metric's values can be merged, and left out where they cannot.

    Attributes:
        hidden: label sets beyond the cap, by metric.

    """

    def __init__(self, cap: int = CAP) -> None:
        self.hidden: defaultdict[Metric, int] = defaultdict(int)
        self._cap = cap
        self._values: defaultdict[Metric, defaultdict[EngineKey, Values]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._merges: dict[Metric, Merge] = {}

    def set(self, metric: Metric, key: EngineKey, value: float, *labels: str) -> None:
        """Set the value of a label set; the last one stays."""
        self._values[metric][key][labels] = value

    def merge(self, how: Merge, metric: Metric, key: EngineKey, value: float, *labels: str) -> None:
        """Merge *value* into that of its label set."""
        self._merges[metric] = how
        values = self._values[metric][key]
        values[labels] = how(values[labels], value) if labels in values else value

    def families(self) -> list[Family]:
        """Return the metrics that have a value."""
        families = []
        for metric, engines in self._values.items():
            family = Family(metric)
            for key, values in sorted(engines.items()):
                for labels, value in sorted(self._capped(metric, values).items()):
                    family.samples.append(Sample((key.engine, key.server, *labels), value))
            families.append(family)
        return families

    def _capped(self, metric: Metric, values: Values) -> Values:
        beyond = len(values) - self._cap
        if beyond <= 0:
            return values
        self.hidden[metric] += beyond
        ordered = sorted(values.items())
        kept = dict(ordered[: self._cap])
        how = self._merges.get(metric)
        if how is not None:
            for labels, value in ordered[self._cap :]:
                other = metric.folded(labels)
                kept[other] = how(kept[other], value) if other in kept else value
        return kept


_ACTIONS = tuple(words(policy.FailureAction))
# Of one hook; it has a handful.
_MOST_PARTS = 32


def add_facts(sheet: GaugeSet, key: EngineKey, source: Source, snapshot: Snapshot, engines: int) -> None:
    """Put what the engine is, one of so many *engines* of its server at least; only EngineCore tells."""
    if not snapshot.HasField("engine"):
        return
    facts = snapshot.engine
    start = facts.start_time_unix_nano or source.start_time_unix_nano
    if start:
        sheet.set(from_snapshots.ENGINE_START, key, start / NANOS)
    if facts.num_gpu_blocks:
        sheet.set(from_snapshots.KV_BLOCKS, key, facts.num_gpu_blocks)
    sheet.set(from_snapshots.ENGINE_INFO, key, 1, *_info(source, facts, engines))
    _add_weights(sheet, key, source, facts)
    if facts.compatibility_hash:
        rows = {"": "", **facts.compatibility_factors}
        for factor, value in rows.items():
            sheet.set(from_snapshots.ENGINE_COMPATIBILITY, key, 1, facts.compatibility_hash, factor, value)


def _add_weights(sheet: GaugeSet, key: EngineKey, source: Source, facts: EngineFacts) -> None:
    word, weights = source.labels.get(WEIGHTS_LABEL, ""), facts.weights
    if word or weights.digest or weights.revision:
        values = {
            "model": facts.model or source.model,
            "role": engine_role(source, facts)[0],
            "pool": source.labels.get(POOL_LABEL, ""),
            "weights": word,
            "digest": weights.digest,
            "weights_revision": weights.revision,
            "revision": revision_of(source.labels),
        }
        sheet.set(
            from_snapshots.ENGINE_WEIGHTS,
            key,
            1,
            *(values[name] for name in from_snapshots.ENGINE_WEIGHTS.labels),
        )


def add_pause(sheet: GaugeSet, key: EngineKey, snapshots: Sequence[Snapshot | None]) -> None:
    """Put whether an engine is paused: each of its connected processes says so; None for one without a snapshot yet."""
    if key.engine and any(snapshot is not None for snapshot in snapshots):
        paused = all(snapshot is not None and snapshot.paused for snapshot in snapshots)
        sheet.set(from_snapshots.ENGINE_PAUSED, key, paused)


def add_rotation(sheet: GaugeSet, key: EngineKey, snapshots: Sequence[Snapshot | None]) -> None:
    """Put whether a server is out of rotation: each of its connected front ends says so; *key* is theirs."""
    if not key.engine and any(snapshot is not None for snapshot in snapshots):
        out = all(snapshot is not None and snapshot.out_of_rotation_until_unix_nano for snapshot in snapshots)
        sheet.set(from_snapshots.OUT_OF_ROTATION, key, out)


def _info(source: Source, facts: EngineFacts, engines: int) -> tuple[str, ...]:
    """Return the values of the labels of `from_snapshots.ENGINE_INFO`."""
    role, guessed = engine_role(source, facts)
    values = {
        "model": facts.model or source.model,
        "role": role,
        "role_guessed": boolean(guessed),
        "vllm_version": facts.vllm_version or source.vllm_version,
        "kv_connector": facts.kv_connector,
        "kv_role": facts.kv_role,
        "kv_engine_id": facts.kv_engine_id,
        "kv_load_failure_policy": facts.kv_load_failure_policy,
        "ec_connector": facts.ec_connector,
        "ec_role": facts.ec_role,
        "scheduler_class": facts.scheduler_class,
        "side_channel": facts.side_channel,
        "tensor_parallel_size": str(facts.tensor_parallel_size),
        "data_parallel_size": str(max(engines, facts.data_parallel_size)),
    }
    return tuple(values[name] for name in from_snapshots.ENGINE_INFO.labels)


def add_hooks(sheet: GaugeSet, key: EngineKey, snapshot: Snapshot) -> None:
    """Put the hooks of one source, and what installed ones do without; a reason is there only where something is not."""
    for hook in snapshot.hooks:
        component = label(common.Component, hook.component)
        sheet.set(from_snapshots.HOOK_INSTALLED, key, hook.installed, component, hook.name, "", hook.reason)
        for part in hook.missing_parts[:_MOST_PARTS] if hook.installed else ():
            # Without a name it would say that the hook itself is missing.
            if part.name:
                sheet.set(from_snapshots.HOOK_INSTALLED, key, 0, component, hook.name, part.name, part.reason)


def add_policy(
    sheet: GaugeSet, key: EngineKey, snapshot: Snapshot, wanted: Callable[[EngineKey], str | None] | None
) -> None:
    """Put the policy in force; only EngineCore tells. What several under one name say is not made one."""
    if not snapshot.HasField("policy"):
        return
    status = snapshot.policy
    # A pause holds back what a snapshot may still name.
    in_force = "" if snapshot.paused else status.hash
    sheet.set(from_snapshots.POLICY_INFO, key, 1, in_force or "none")
    for channel, chosen in (("kv", status.kv_action), ("ec", status.ec_action)):
        if chosen:
            for action in _ACTIONS:
                sheet.merge(MAX, from_snapshots.POLICY_ACTION, key, action == chosen, channel, action)
    goal = wanted(key) if wanted is not None else None
    if goal is not None:
        sheet.merge(MIN, from_snapshots.POLICY_IN_SYNC, key, in_force == goal)
    if status.changed_time_unix_nano:
        sheet.set(from_snapshots.POLICY_LAST_CHANGE, key, status.changed_time_unix_nano / NANOS)
    if status.expires_time_unix_nano and not snapshot.paused:
        sheet.set(from_snapshots.POLICY_EXPIRY, key, status.expires_time_unix_nano / NANOS)


def add_stalls(sheet: GaugeSet, stalls: Mapping[EngineKey, Iterable[Stall]]) -> None:
    """Put the stalls of all engines into *sheet*."""
    for key, found in stalls.items():
        for stall in found:
            sheet.merge(add, from_snapshots.STALLS, key, stall.count, stall.kind, stall.peer)
            sheet.merge(MIN, from_snapshots.STALL_START, key, stall.since, stall.kind, stall.peer)


def add_speeds(sheet: GaugeSet, key: EngineKey, speeds: Mapping[PairKey, Speed]) -> None:
    """Put the speeds of one engine; a ratio that is not known is absent."""
    for pair, speed in speeds.items():
        labels = (label(common.Channel, pair.channel), pair.peer)
        sheet.merge(MIN, from_snapshots.THROUGHPUT, key, speed.now, *labels)
        if speed.ratio is not None:
            sheet.merge(MIN, from_snapshots.THROUGHPUT_USUAL_RATIO, key, speed.ratio, *labels)
        if speed.siblings_ratio is not None:
            sheet.merge(MIN, from_snapshots.THROUGHPUT_PEERS_RATIO, key, speed.siblings_ratio, *labels)
