"""Computes what ranks moved from the files that they wrote: expert and weights of each row, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path


def expert_values(layer: int, expert: int, width: int) -> Any:
    """Return the weights of one expert in one of a layer's tensors, shape (width,): the same in every process."""
    return np.random.default_rng((layer, expert, width)).standard_normal(width, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Moves:
    """One layer on one rank.

    Attributes:
        unchanged: rows that hold the same expert as before.
        local: rows whose new expert this rank already had in another row.
        remote: rows whose new expert it did not have.
        received: experts that it did not have.
        expert_bytes: of one expert's weights.

    """

    layer: int
    unchanged: int
    local: int
    remote: int
    received: int
    expert_bytes: int


def moves_of(directory: Path, ranks: int) -> tuple[tuple[Moves, ...], ...]:
    """Return the moves by rank and layer, from the files before and after.

    Raises:
        ValueError: the weights of a row are not those of its expert in the map.

    """
    return tuple(
        _rank(np.load(directory / f"before{rank}.npz"), np.load(directory / f"after{rank}.npz"), rank, ranks)
        for rank in range(ranks)
    )


def _rank(before: Any, after: Any, rank: int, ranks: int) -> tuple[Moves, ...]:
    rows = before["experts"].shape[1] // ranks
    mine = slice(rank * rows, (rank + 1) * rows)
    moves = []
    for layer, (old, new) in enumerate(
        zip(before["experts"][:, mine], after["experts"][:, mine], strict=True)
    ):
        weights = [name for name in after.files if name.startswith(f"layer{layer}_")]
        _verify(after, layer, weights, new)
        missing = [expert for expert in new if expert not in set(old)]
        moved = [expert for row, expert in enumerate(new) if expert != old[row]]
        moves.append(
            Moves(
                layer,
                rows - len(moved),
                len(moved) - len(missing),
                len(missing),
                len(set(missing)),
                sum(after[name][0].nbytes for name in weights),
            )
        )
    return tuple(moves)


def _verify(after: Any, layer: int, weights: list[str], experts: Any) -> None:
    for name in weights:
        held = after[name]
        for row, expert in enumerate(experts):
            if not np.array_equal(held[row], expert_values(layer, int(expert), held.shape[1])):
                raise ValueError(f"{name}: row {row} does not hold the weights of expert {expert}")
