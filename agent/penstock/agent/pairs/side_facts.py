"""What one engine of a pair is, in the words of a comparison. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1 import admin_pb2 as admin
    from penstock.proto.v1.snapshot_pb2 import PeerStatus, TransferFacts, WeightsFacts

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
    memory = f" ({facts.memory})" if facts.memory else ""
    return " ".join(["+".join(facts.backends), *chosen]) + memory
