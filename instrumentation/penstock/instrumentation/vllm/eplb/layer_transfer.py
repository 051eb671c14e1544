"""The transfer of one layer's expert weights on one rank: counts, bytes, source ranks.

Pure arithmetic over vLLM's maps (``physical_to_logical_map``: which expert each row of each rank holds) and its
``TransferMetadata`` (vLLM #37341). Nothing here touches a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPERT_IDS_MAX: Final = 256
"""Expert ids and rows reported for one layer, as the wire allows."""

SOURCE_RANKS_MAX: Final = 64
"""Source ranks reported for one layer, those with the most bytes."""

NO_EXPERT: Final = -1
"""In a map: a row that holds no expert (elastic expert parallelism)."""


@dataclass(frozen=True, slots=True)
class LayerMoves:
    """One layer on one rank.

    Attributes:
        unchanged: rows that keep their expert.
        local: rows whose expert came from another row of this rank.
        remote: rows whose expert came from another rank, copies of one received expert included.
        recv_count: experts received, each once.
        expert_ids: the received experts, at most :data:`EXPERT_IDS_MAX`.
        dst_rows: the row each was received into.
        bytes: received from other ranks; an expert that no rank holds is received from none.
        sources: bytes by source rank.

    """

    layer: int
    unchanged: int
    local: int
    remote: int
    recv_count: int
    expert_ids: tuple[int, ...]
    dst_rows: tuple[int, ...]
    bytes: int
    sources: dict[int, int]

    def fields(self, start_ns: int, duration_ns: int) -> dict[str, Any]:
        """Return the fields of the wire's ``EplbLayer``."""
        largest = sorted(self.sources.items(), key=lambda item: (-item[1], item[0]))[:SOURCE_RANKS_MAX]
        return {
            "layer": self.layer,
            "experts_unchanged": self.unchanged,
            "experts_received_locally": self.local,
            "experts_received_remotely": self.remote,
            "recv_count": self.recv_count,
            "recv_expert_ids": self.expert_ids,
            "recv_dst_rows": self.dst_rows,
            "bytes": self.bytes,
            "start_time_unix_nano": start_ns,
            "duration_nano": duration_ns,
            "from_ranks": [{"rank": rank, "bytes": count} for rank, count in sorted(largest)],
        }


def layer_moves(
    layer: int, metadata: Any, new: np.ndarray, rank: int, expert_bytes: int, sources: dict[int, int]
) -> LayerMoves:
    """Return what a completed transfer moved.

    Args:
        layer: index among the MoE layers.
        metadata: vLLM's ``TransferMetadata`` of the layer.
        new: the experts after it, shape (ranks x rows of a rank).
        rank: this one, in the expert-parallel group.
        expert_bytes: of all weights of one expert.
        sources: experts received, by source rank.

    """
    rows = len(metadata.is_unchanged)
    held = new[rank * rows : (rank + 1) * rows] != NO_EXPERT
    unchanged = metadata.is_unchanged & held
    local = metadata.is_received_locally & ~metadata.is_unchanged & held
    count = int(metadata.recv_count)
    return LayerMoves(
        layer,
        int(unchanged.sum()),
        int(local.sum()),
        int((held & ~metadata.is_received_locally).sum()),
        count,
        tuple(metadata.recv_expert_ids[: min(count, EXPERT_IDS_MAX)].tolist()),
        tuple(metadata.recv_dst_rows[: min(count, EXPERT_IDS_MAX)].tolist()),
        sum(sources.values()) * expert_bytes,
        {source: experts * expert_bytes for source, experts in sources.items()},
    )


@dataclass(frozen=True, slots=True)
class Partners:
    """The other ranks of one layer's transfer: number of experts by rank, received (*sources*) and sent (*targets*)."""

    sources: dict[int, int]
    targets: dict[int, int]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, sorted."""
        return tuple(sorted({*self.sources, *self.targets}))


NO_PARTNERS: Final = Partners({}, {})


def partners_of(old: np.ndarray, new: np.ndarray, rows: int, rank: int) -> Partners:
    """Return how many experts *rank* receives from and sends to each other rank, by vLLM's own assignment.

    The ranks that hold an expert divide those that need it evenly, in the order of the ranks; the remainder goes one to each
    (``move_to_buffer`` and ``schedule_migration_batches``). Runs on the forward pass's thread, so without a loop over experts.

    Args:
        old: experts before, shape (ranks x rows).
        new: experts after.
        rows: of one rank.
        rank: whose partners.

    """
    before, after = old.reshape(-1, rows), new.reshape(-1, rows)
    experts = int(max(old.max(), new.max())) + 1
    # One extra column, for index -1: rows that hold no expert.
    holds, needs = np.zeros((2, len(before), experts + 1), dtype=bool)
    ranks = np.arange(len(before))[:, None]
    holds[ranks, before] = True
    needs[ranks, after] = True
    needs &= ~holds
    moving = np.flatnonzero(
        (needs[rank] | holds[rank])[:-1] & needs[:, :-1].any(axis=0) & holds[:, :-1].any(axis=0)
    )
    holds, needs = holds[:, moving], needs[:, moving]
    each = needs.sum(axis=0) // holds.sum(axis=0)
    even = each * holds.sum(axis=0)
    # For each expert: the sender of the n-th receiver.
    position = needs.cumsum(axis=0) - 1
    sender = np.where(position < even, position // np.maximum(each, 1), position - even)
    order = np.argsort(~holds, axis=0, kind="stable")
    source = np.take_along_axis(order, np.where(needs, sender, 0), axis=0)
    return Partners(_counts(source[rank][needs[rank]]), _counts(np.nonzero(needs & (source == rank))[0]))


def _counts(ranks: np.ndarray) -> dict[int, int]:
    found, counts = np.unique(ranks, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def balancedness(load: np.ndarray, experts: np.ndarray, ranks: int) -> float | None:
    """Return the mean load of the ranks divided by the highest, over all layers, as vLLM logs it; None without load.

    Args:
        load: tokens of each logical expert, shape (layers, logical experts).
        experts: the logical expert of each row, shape (layers, ranks x rows); the copies of an expert share its load evenly.
        ranks: that the rows belong to.

    """
    layers = len(load)
    held = np.where(experts == NO_EXPERT, 0, experts)
    present = (experts != NO_EXPERT).astype(np.float64)
    copies = np.zeros(load.shape)
    np.add.at(copies, (np.arange(layers)[:, None], held), present)
    share = load / np.maximum(copies, 1)
    by_rank = (np.take_along_axis(share, held, axis=1) * present).reshape(layers, ranks, -1).sum(axis=2)
    highest = float(by_rank.max(axis=1).sum())
    # Rounding may raise the ratio of an even load above 1.
    return min(1.0, float(by_rank.mean(axis=1).sum()) / highest) if highest > 0 else None


def expert_bytes_of(weights: Sequence[Any]) -> int:
    """Return the bytes of one expert in all weight tensors of a layer, each of shape (rows, ...)."""
    return sum(weight[0].numel() * weight.element_size() for weight in weights if len(weight))
