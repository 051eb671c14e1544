"""What is told of a layer, against vLLM's own code that moves it: every send and receive that it posts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.instrumentation.vllm.eplb_moves import (
    IDS_MAX,
    NO_EXPERT,
    RANKS_MAX,
    LayerMoves,
    balancedness,
    bytes_of_expert,
    layer_moves,
    received_from,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.eplb import rebalance_execute
    from vllm.distributed.eplb.eplb_communicator import EplbCommunicator
    from vllm.distributed.eplb.eplb_state import _compute_eplb_load_stats


@dataclass
class Posts(EplbCommunicator):
    """A communicator that keeps what it is to send and receive."""

    sends: list[tuple[int, int]] = field(default_factory=list)
    receives: list[tuple[int, int]] = field(default_factory=list)

    def add_send(self, _tensors: Any, dst_rank: int, expert_id: int) -> None:
        """Note a send."""
        self.sends.append((dst_rank, expert_id))

    def add_recv(self, _tensors: Any, src_rank: int, expert_id: int) -> None:
        """Note a receive."""
        self.receives.append((src_rank, expert_id))

    def execute(self) -> None:
        """Move nothing."""


@st.composite
def maps(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    """Draw ranks and two maps in which every expert is somewhere, as vLLM's policies make them."""
    ranks = draw(st.integers(1, 5))
    rows = draw(st.integers(1, 5))
    slots = ranks * rows
    experts = draw(st.integers(1, slots))

    def one() -> np.ndarray:
        spare = draw(
            st.lists(st.integers(0, experts - 1), min_size=slots - experts, max_size=slots - experts)
        )
        return np.array(draw(st.permutations([*range(experts), *spare])))

    return ranks, one(), one()


@settings(deadline=None, max_examples=150)
@given(maps(), st.booleans())
def test_all_ranks_as_vllm_moves_them(drawn: tuple[int, np.ndarray, np.ndarray], batching: bool) -> None:
    """Counts, bytes and source ranks are what vLLM posts, on every rank, in one go or in batches."""
    ranks, old, new = drawn
    rows = len(old) // ranks
    weights = [torch.zeros(rows, 3), torch.zeros(rows, 2, dtype=torch.float64)]
    received: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    for rank in range(ranks):
        posts = Posts()
        metadata = rebalance_execute.move_to_buffer(
            num_local_experts=rows,
            old_indices=old,
            new_indices=new,
            expert_weights=weights,
            expert_weights_buffers=[torch.empty_like(weight) for weight in weights],
            stream=None,
            ep_rank=rank,
            communicator=posts,
            layer_idx=7,
            enable_migration_batching=batching,
        )
        sources = received_from(old, new, rows, rank)
        assert sources == {
            source: sum(1 for other, _ in posts.receives if other == source) for source, _ in posts.receives
        }
        moves = layer_moves(7, metadata, new, rank, bytes_of_expert(weights), sources)
        assert moves.unchanged + moves.local + moves.remote == rows
        assert moves.recv_count == len(posts.receives) == sum(sources.values())
        assert sorted(moves.expert_ids) == sorted(expert for _, expert in posts.receives)
        assert moves.bytes == moves.recv_count * (3 * 4 + 2 * 8) == sum(moves.sources.values())
        mine_before, mine_after = old.reshape(ranks, rows)[rank], new.reshape(ranks, rows)[rank]
        assert moves.unchanged == int((mine_before == mine_after).sum())
        assert moves.remote == sum(expert not in mine_before for expert in mine_after)
        assert [mine_after[row] for row in moves.dst_rows] == list(moves.expert_ids)
        received |= {(source, rank): count for source, count in sources.items()}
        for target, _ in posts.sends:
            sent[rank, target] = sent.get((rank, target), 0) + 1
    assert received == sent


def test_rows_that_hold_no_expert_are_not_counted() -> None:
    """Elastic expert parallelism leaves rows empty, before or after."""
    old, new = np.array([0, 1, NO_EXPERT, NO_EXPERT]), np.array([0, NO_EXPERT, 1, NO_EXPERT])
    moved = []
    for rank in (0, 1):
        metadata = rebalance_execute.move_to_buffer(
            num_local_experts=2,
            old_indices=old,
            new_indices=new,
            expert_weights=[torch.zeros(2, 1)],
            expert_weights_buffers=[torch.zeros(2, 1)],
            stream=None,
            ep_rank=rank,
            communicator=Posts(),
        )
        moved.append(layer_moves(0, metadata, new, rank, 4, received_from(old, new, 2, rank)))
    assert [(m.unchanged, m.local, m.remote, m.sources) for m in moved] == [(1, 0, 0, {}), (0, 0, 1, {0: 4})]


def test_what_is_told_is_bounded() -> None:
    """Of many experts and ranks the first ids and the largest sources are told; the counts stay whole."""
    moves = LayerMoves(
        0, 0, 0, 900, 900, tuple(range(IDS_MAX)), tuple(range(IDS_MAX)), 9_000, {n: n for n in range(300)}
    )
    fields = moves.fields(1, 2)
    assert fields["recv_count"] == 900
    assert [row["rank"] for row in fields["from_ranks"]] == list(range(300 - RANKS_MAX, 300))


@settings(deadline=None, max_examples=100)
@given(maps(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_balancedness_is_vllms(drawn: tuple[int, np.ndarray, np.ndarray], layers: int, random: Any) -> None:
    """Mean over highest load of the ranks, as vLLM computes it from the tokens that each row got."""
    ranks, _, experts = drawn
    logical = int(experts.max()) + 1
    load = np.array([[random.randrange(0, 50) for _ in range(logical)] for _ in range(layers)], dtype=float)
    copies = np.bincount(experts, minlength=logical)
    by_row = load[:, experts] / copies[experts]
    average, highest = _compute_eplb_load_stats(
        torch.from_numpy(by_row).reshape(layers, ranks, -1).sum(dim=-1)
    )
    found = balancedness(load, np.tile(experts, (layers, 1)), ranks)
    if highest == 0:
        assert found is None
    else:
        assert found == pytest.approx(float(average / highest))
