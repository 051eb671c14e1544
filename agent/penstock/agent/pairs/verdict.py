"""Which facts of a prefill and a decode engine differ, and what each difference does. Pure.

The rules are those of vLLM's NIXL connector: the factors of its compatibility hash (``compute_nixl_compatibility_hash``), and the
geometry that it checks at the handshake (``_validate_remote_agent_handshake``). Weights are in neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.proto.v1.admin_pb2 import (
    DIFFERENCE_EFFECT_FAILS,
    DIFFERENCE_EFFECT_NONE,
    DIFFERENCE_EFFECT_WRONG,
    PAIR_COMPATIBILITY_NO,
    PAIR_COMPATIBILITY_UNKNOWN,
    PAIR_COMPATIBILITY_YES,
    PAIR_WEIGHTS_DIFFER,
    PAIR_WEIGHTS_SAME,
    PAIR_WEIGHTS_UNKNOWN,
    FactDifference,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.admin_pb2 import DifferenceEffect, PairCompatibility, PairWeights
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, PeerStatus, TransferFacts, WeightsFacts

REVISION_LABEL: Final = "revision"
"""An operator's word for the roll-out: it alone means the same on engines of different workloads."""

_REVISION_LABELS: Final = (REVISION_LABEL, "controller-revision-hash", "pod-template-hash")
"""Labels that say which roll-out a pod is of; the first that is there counts. The hashes differ between any two workloads."""

WEIGHTS_LABEL: Final = "weights"
"""An operator's word for the weights: two engines with the same value have the same weights, whatever their files are."""

POOL_LABEL: Final = "pool"
"""Engines with different values of it are never paired."""

_NIXL: Final = "Nixl"


def revision_of(labels: Mapping[str, str]) -> str:
    """Return the roll-out that an engine's pod is of; empty if no label says so."""
    return next((labels[name] for name in _REVISION_LABELS if labels.get(name)), "")


def weights_word(labels: Mapping[str, str], weights: WeightsFacts) -> str:
    """Return what stands for an engine's weights: the operator's word, or their digest; empty if neither is known."""
    return labels.get(WEIGHTS_LABEL) or weights.digest


def family_of(connector: str) -> str:
    """Return what a connector's name says of its protocol: NIXL's pull and push connectors are one family."""
    return _NIXL if connector.startswith(_NIXL) else connector


def is_nixl(side: admin.PairEngine) -> bool:
    """Return whether an engine moves KV blocks by NIXL."""
    return family_of(side.facts.kv_connector) == _NIXL


def has_nixl(facts: EngineFacts) -> bool:
    """Return whether an engine has peers over NIXL, with another connector or without: such a child of several tells its mode."""
    return family_of(facts.kv_connector) == _NIXL or bool(facts.transfer_mode)


def layout_of(side: admin.PairEngine) -> str:
    """Return the layout of its KV blocks; empty if its workers do not tell, or differ."""
    layouts = {facts.kv_layout for facts in side.transfers}
    return layouts.pop() if len(layouts) == 1 else ""


def geometry_of(side: admin.PairEngine) -> str:
    """Return an engine's geometry: ``TP2 PP1 DP1, 16-token blocks, auto, LBHNC, pull``."""
    facts = side.facts
    sizes = [
        f"{name}{size}"
        for name, size in (
            ("TP", facts.tensor_parallel_size),
            # 0: an engine of an earlier version.
            ("PP", facts.pipeline_parallel_size if facts.pipeline_parallel_size > 1 else 0),
            ("DP", facts.data_parallel_size if facts.data_parallel_size > 1 else 0),
        )
        if size
    ]
    parts = [
        " ".join(sizes),
        f"{facts.block_size}-token blocks" if facts.block_size else "",
        facts.kv_cache_dtype,
        layout_of(side),
        facts.transfer_mode,
    ]
    return ", ".join(part for part in parts if part)


def peer_geometry(status: PeerStatus) -> str:
    """Return what a handshake told of a peer's geometry; empty for nothing."""
    parts = [
        f"TP{status.tensor_parallel_size}" if status.tensor_parallel_size else "",
        f"{status.block_size}-token blocks" if status.block_size else "",
    ]
    return ", ".join(part for part in parts if part)


def transport_of(side: admin.PairEngine) -> str:
    """Return how its workers move blocks, as far as NIXL and the environment tell: ``UCX tls=tcp,self devices=mlx5_0:1 (DRAM)``."""
    return " / ".join(dict.fromkeys(_transport(facts) for facts in side.transfers if facts.backends))


def _transport(facts: TransferFacts) -> str:
    chosen = [
        f"{word}={facts.environment[name]}"
        for name, word in (("UCX_TLS", "tls"), ("UCX_NET_DEVICES", "devices"))
        if name in facts.environment
    ]
    # UCX chooses for each peer, and NIXL has no call that tells what.
    if "UCX" in facts.backends and "UCX_TLS" not in facts.environment:
        chosen.insert(0, "tls=not told")
    memory = f" ({facts.memory})" if facts.memory else ""
    return " ".join(["+".join(facts.backends), *chosen]) + memory


_VERSION: Final = "vllm_version"
_HASH: Final = "compatibility_hash"


class PairVerdict(NamedTuple):
    """What two engines are to each other.

    Attributes:
        compatible: whether their handshake works.
        weights: whether they compute with the same weights.
        differences: the worst first.
        reason: why it is compatible or not, in words.

    """

    compatible: PairCompatibility
    weights: PairWeights
    differences: list[FactDifference]
    reason: str


def compare_sides(
    decode: admin.PairEngine, prefill: admin.PairEngine, *, connected: bool = False
) -> PairVerdict:
    """Return the verdict; *connected*: they have shaken hands, so no difference has made that fail."""
    weights = _compare_weights(decode, prefill)
    found = [*_protocol(decode, prefill), *_geometry(decode, prefill), *_meaning(decode, prefill, weights)]
    for difference in found:
        if connected and difference.effect == DIFFERENCE_EFFECT_FAILS:
            # vLLM's check is off (enforce_handshake_compat), or it permutes the blocks (enable_permute_local_kv).
            difference.effect = (
                DIFFERENCE_EFFECT_WRONG if difference.fact == _HASH else DIFFERENCE_EFFECT_NONE
            )
    found.sort(key=lambda difference: (-difference.effect, difference.fact))
    failing = [each for each in found if each.effect == DIFFERENCE_EFFECT_FAILS]
    compatible, reason = _compatibility(decode, prefill, failing, connected=connected)
    return PairVerdict(compatible, weights, found, reason)


def versions_apart(pair: admin.Pair) -> tuple[str, str] | None:
    """Return the versions of vLLM of both sides of *pair*, where these keep them from exchanging blocks."""
    for each in pair.differences:
        if each.fact == _VERSION and each.effect == DIFFERENCE_EFFECT_FAILS:
            return each.value, each.peer_value
    return None


def _compatibility(
    decode: admin.PairEngine, prefill: admin.PairEngine, failing: list[FactDifference], *, connected: bool
) -> tuple[PairCompatibility, str]:
    if failing:
        return PAIR_COMPATIBILITY_NO, ", ".join(
            f"{each.fact} {each.value}≠{each.peer_value}" for each in failing
        )
    if connected:
        return PAIR_COMPATIBILITY_YES, "they have shaken hands"
    if decode.facts.compatibility_hash and prefill.facts.compatibility_hash:
        return PAIR_COMPATIBILITY_YES, "same compatibility hash, geometry fits"
    silent = [
        name for name, side in (("decode", decode), ("prefill", prefill)) if not side.facts.compatibility_hash
    ]
    return PAIR_COMPATIBILITY_UNKNOWN, f"no compatibility hash is known of {' and '.join(silent)}"


def _protocol(decode: admin.PairEngine, prefill: admin.PairEngine) -> Iterator[FactDifference]:
    """Yield the factors of the compatibility hash that differ, and the connector."""
    one, other = decode.facts, prefill.facts
    if family_of(one.kv_connector) != family_of(other.kv_connector):
        yield _difference("kv_connector", one.kv_connector, other.kv_connector, DIFFERENCE_EFFECT_FAILS)
        return
    if one.compatibility_hash and other.compatibility_hash:
        if one.compatibility_hash != other.compatibility_hash:
            yield from _factors(decode, prefill)
        return
    if is_nixl(decode) and is_nixl(prefill):
        # So is the version.
        mine, theirs = _version(one.vllm_version), _version(other.vllm_version)
        if mine and theirs and mine != theirs:
            yield _difference(_VERSION, mine, theirs, DIFFERENCE_EFFECT_FAILS)
    if one.transfer_mode and other.transfer_mode and one.transfer_mode != other.transfer_mode:
        # vLLM puts it into the hash; it is known before the workers show theirs.
        yield _difference("transfer_mode", one.transfer_mode, other.transfer_mode, DIFFERENCE_EFFECT_FAILS)


def _version(version: str) -> str:
    """Return a version without what a build adds to it."""
    return version.partition("+")[0]


def _factors(decode: admin.PairEngine, prefill: admin.PairEngine) -> Iterator[FactDifference]:
    one, other = decode.facts.compatibility_factors, prefill.facts.compatibility_factors
    names = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
    for name in names:
        yield _difference(name, one[name], other[name], DIFFERENCE_EFFECT_FAILS)
    if not names:
        hashes = (decode.facts.compatibility_hash[:12], prefill.facts.compatibility_hash[:12])
        yield _difference(_HASH, *hashes, DIFFERENCE_EFFECT_FAILS)


def _geometry(decode: admin.PairEngine, prefill: admin.PairEngine) -> Iterator[FactDifference]:
    """Yield what differs of the geometry; vLLM's NIXL connector alone says which differences it refuses."""
    one, other = decode.facts, prefill.facts
    judged = is_nixl(decode) and is_nixl(prefill)
    for fact, mine, theirs, fits in (
        (
            "tensor_parallel_size",
            one.tensor_parallel_size,
            other.tensor_parallel_size,
            _ranks_fit(decode, prefill),
        ),
        ("block_size", one.block_size, other.block_size, _blocks_fit(decode, prefill)),
        ("pipeline_parallel_size", one.pipeline_parallel_size, other.pipeline_parallel_size, True),
        ("kv_layout", layout_of(decode), layout_of(prefill), one.latent_attention and other.latent_attention),
    ):
        if mine and theirs and mine != theirs:
            effect = DIFFERENCE_EFFECT_FAILS if judged and not fits else DIFFERENCE_EFFECT_NONE
            yield _difference(fact, str(mine), str(theirs), effect)


def _ranks_fit(decode: admin.PairEngine, prefill: admin.PairEngine) -> bool:
    """Return whether vLLM can map the ranks of two engines onto each other."""
    one, other = decode.facts.tensor_parallel_size, prefill.facts.tensor_parallel_size
    if not one or not other:
        return True
    if max(one, other) % min(one, other):
        return False
    facts = prefill.facts
    # A prefill side with more ranks than KV heads holds copies, which a smaller decode side cannot read.
    copies = facts.kv_heads and other > facts.kv_heads and not facts.latent_attention and not facts.hybrid
    return not (other > one and copies)


def _blocks_fit(decode: admin.PairEngine, prefill: admin.PairEngine) -> bool:
    """Return whether a block of the side that moves the data is a multiple of one of the other side."""
    mover, other = (prefill, decode) if prefill.facts.transfer_mode == "push" else (decode, prefill)
    return not other.facts.block_size or mover.facts.block_size % other.facts.block_size == 0


def _meaning(
    decode: admin.PairEngine, prefill: admin.PairEngine, weights: PairWeights
) -> Iterator[FactDifference]:
    """Yield what the handshake does not check."""
    one, other = decode.facts.weights, prefill.facts.weights
    if weights == PAIR_WEIGHTS_DIFFER:
        yield _difference("weights", _weights_word(decode), _weights_word(prefill), DIFFERENCE_EFFECT_WRONG)
    elif one.config_digest and other.config_digest and one.config_digest != other.config_digest:
        yield _difference("model_config", one.config_digest, other.config_digest, DIFFERENCE_EFFECT_NONE)
    # The hashes of two workloads differ whatever their roll-outs are.
    mine, theirs = decode.labels.get(REVISION_LABEL), prefill.labels.get(REVISION_LABEL)
    if mine and theirs and mine != theirs:
        yield _difference("revision", mine, theirs, DIFFERENCE_EFFECT_NONE)


def _compare_weights(decode: admin.PairEngine, prefill: admin.PairEngine) -> PairWeights:
    mine, theirs = decode.labels.get(WEIGHTS_LABEL), prefill.labels.get(WEIGHTS_LABEL)
    if mine and theirs:
        return PAIR_WEIGHTS_SAME if mine == theirs else PAIR_WEIGHTS_DIFFER
    one, other = decode.facts.weights, prefill.facts.weights
    for known, asked in ((one.digest, other.digest), (one.revision, other.revision)):
        if known and asked:
            return PAIR_WEIGHTS_SAME if known == asked else PAIR_WEIGHTS_DIFFER
    return PAIR_WEIGHTS_UNKNOWN


def _weights_word(side: admin.PairEngine) -> str:
    return weights_word(side.labels, side.facts.weights) or side.facts.weights.revision[:12]


def _difference(fact: str, value: str, peer_value: str, effect: DifferenceEffect) -> FactDifference:
    return FactDifference(fact=fact, value=value, peer_value=peer_value, effect=effect)
