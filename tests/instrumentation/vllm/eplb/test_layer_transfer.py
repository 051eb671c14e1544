"""The events of a layer, against vLLM's own code that moves it: every send and receive that it posts."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from penstock.instrumentation.vllm.eplb.layer_transfer import (
    EXPERT_IDS_MAX,
    NO_EXPERT,
    SOURCE_RANKS_MAX,
    LayerMoves,
    balancedness,
    expert_bytes_of,
    layer_moves,
    partners_of,
)

from tests.support.engine.versions import from_version
from tests.support.eplb.state import STREAM

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.distributed.eplb import eplb_state, rebalance_execute
    from vllm.distributed.eplb.eplb_communicator import EplbCommunicator


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
    """Draw ranks and two maps: of every expert, as vLLM's policies make them, or with rows that blocker none (elastic)."""
    ranks = draw(st.integers(1, 5))
    rows = draw(st.integers(1, 5))
    slots = ranks * rows
    experts = draw(st.integers(1, slots))
    elastic = draw(st.booleans())

    def one() -> np.ndarray:
        spare = draw(
            st.lists(st.integers(0, experts - 1), min_size=slots - experts, max_size=slots - experts)
        )
        held = np.array(draw(st.permutations([*range(experts), *spare])))
        empty = draw(st.sets(st.integers(0, slots - 1)) if elastic else st.just(set()))
        held[list(empty)] = NO_EXPERT
        return held

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
        # By its names: some came with a later vLLM.
        names = inspect.signature(rebalance_execute.move_to_buffer).parameters
        later = {"enable_migration_batching": batching, "stream": None, "cuda_stream": None}
        metadata = rebalance_execute.move_to_buffer(
            num_local_experts=rows,
            old_indices=old,
            new_indices=new,
            expert_weights=weights,
            expert_weights_buffers=[torch.empty_like(weight) for weight in weights],
            ep_rank=rank,
            communicator=posts,
            layer_idx=7,
            **{name: value for name, value in later.items() if name in names},
        )
        partners = partners_of(old, new, rows, rank)
        assert partners.sources == Counter(source for source, _ in posts.receives)
        assert partners.targets == Counter(target for target, _ in posts.sends)
        moves = layer_moves(7, metadata, new, rank, expert_bytes_of(weights), partners.sources)
        mine_before, mine_after = old.reshape(ranks, rows)[rank], new.reshape(ranks, rows)[rank]
        held = mine_after != NO_EXPERT
        assert moves.unchanged + moves.local + moves.remote == held.sum()
        assert set(moves.expert_ids) == set(mine_after[held]) - set(mine_before)
        assert moves.recv_count == len(moves.expert_ids)
        # One that no rank blockers is received from none.
        assert {expert for _, expert in posts.receives} == {e for e in moves.expert_ids if e in old}
        assert moves.bytes == len(posts.receives) * (3 * 4 + 2 * 8) == sum(moves.sources.values())
        assert moves.unchanged == int(((mine_before == mine_after) & held).sum())
        assert moves.remote == sum(expert not in mine_before for expert in mine_after[held])
        assert [mine_after[row] for row in moves.dst_rows] == list(moves.expert_ids)
        received |= {(source, rank): count for source, count in partners.sources.items()}
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
            ep_rank=rank,
            communicator=Posts(),
            **{STREAM: None},
        )
        moved.append(layer_moves(0, metadata, new, rank, 4, partners_of(old, new, 2, rank).sources))
    assert [(m.unchanged, m.local, m.remote, m.sources) for m in moved] == [(1, 0, 0, {}), (0, 0, 1, {0: 4})]


def test_reported_lists_are_bounded() -> None:
    """Only the first ids and the largest sources are reported; the counts are complete."""
    moves = LayerMoves(
        0,
        0,
        0,
        900,
        900,
        tuple(range(EXPERT_IDS_MAX)),
        tuple(range(EXPERT_IDS_MAX)),
        9_000,
        {n: n for n in range(300)},
    )
    fields = moves.fields(1, 2)
    assert fields["recv_count"] == 900
    assert [row["rank"] for row in fields["from_ranks"]] == list(range(300 - SOURCE_RANKS_MAX, 300))


@from_version(0, 28, "computes it within its logging")
@settings(deadline=None, max_examples=100)
@given(maps(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_balancedness_is_vllms(drawn: tuple[int, np.ndarray, np.ndarray], layers: int, random: Any) -> None:
    """Mean over highest load of the ranks, as vLLM computes it from the tokens that each row got."""
    ranks, _, experts = drawn
    logical = int(experts.max()) + 1
    assume(logical)
    load = np.array([[random.randrange(0, 50) for _ in range(logical)] for _ in range(layers)], dtype=float)
    held = experts != NO_EXPERT
    copies = np.bincount(experts[held], minlength=logical)
    by_row = np.zeros((layers, len(experts)))
    by_row[:, held] = load[:, experts[held]] / copies[experts[held]]
    average, highest = eplb_state._compute_eplb_load_stats(
        torch.from_numpy(by_row).reshape(layers, ranks, -1).sum(dim=-1)
    )
    found = balancedness(load, np.tile(experts, (layers, 1)), ranks)
    if highest == 0:
        assert found is None
    else:
        assert found == pytest.approx(float(average / highest))
