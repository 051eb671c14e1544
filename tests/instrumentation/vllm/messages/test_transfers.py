"""Finished transfers in the workers' reports: places, peers, aggregation over ranks."""

from __future__ import annotations

import pickle
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.messages.transfers import (
    BrokenBlocks,
    FinishedTransfer,
    peer_at,
    place_of,
    tier_place_of,
)
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport, find_reports
from penstock.instrumentation.vllm.naming.peers import Peer


class Source(Enum):
    """As vLLM's CacheHitSource."""

    HOST = "host"
    DISK = "disk"
    P2P = "p2p"


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        ([Source.HOST], "host"),
        ({Source.DISK: 64}, "disk"),
        ([Source.HOST, Source.DISK], ""),
        ([Source.P2P], ""),
        ([None], ""),
        ([], ""),
    ],
)
def test_place(sources: Any, place: str) -> None:
    """A place is known only if all sources agree and it is not another engine."""
    assert place_of(sources) == place


def test_peer_of_a_move() -> None:
    """A place takes precedence over the request's peer."""
    peer = Peer("10.0.0.7:5600")
    assert peer_at("disk", peer) == Peer("disk")
    assert peer_at("", peer) == peer
    assert peer_at("", None) == Peer("unknown")
    assert peer_at("p2p", peer) == peer


_MOVES = st.integers(0, 3).map(
    lambda rank: FinishedTransfer(f"r{rank}", "C", rank, c.DIRECTION_RECEIVE, 0, rank)
)

_BROKEN = st.integers(0, 3).map(lambda rank: BrokenBlocks("C", rank, frozenset({rank})))

_REPORTS = st.builds(
    WorkerReport,
    moves=st.lists(_MOVES, max_size=3).map(tuple),
    broken=st.lists(_BROKEN, max_size=2).map(tuple),
)


@pytest.mark.parametrize(
    ("sources", "promoted", "place"),
    [
        (["p2p"], False, "p2p"),
        (["p2p"], True, "host"),
        (["p2p", "host"], True, "host"),
        (["p2p", "host"], False, ""),
        (["p2p", "disk"], True, ""),
        (["disk"], True, "disk"),
        (["external_unspecified"], True, ""),
        ([], True, ""),
    ],
)
def test_the_place_of_a_load_through_tiers(sources: list[str], promoted: bool, place: str) -> None:
    """A block that was promoted from a peer comes from memory, where the promotion is a transfer of its own."""
    assert tier_place_of(sources, promoted=promoted) == place


@given(st.lists(_REPORTS, min_size=1, max_size=4))
def test_ranks_are_combined(reports: list[WorkerReport]) -> None:
    """Aggregation of pickled reports neither loses nor duplicates entries."""
    first, *others = (pickle.loads(pickle.dumps(each)) for each in reports)
    for each in others:
        first = first.aggregate(each)
    (found,) = find_reports(first)
    assert found.moves == tuple(move for report in reports for move in report.moves)
    assert found.broken == tuple(broken for report in reports for broken in report.broken)
