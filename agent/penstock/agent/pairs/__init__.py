"""Pairs of engines: which facts of two differ, what that does to their transfers, and which two are a pair. Pure."""

from __future__ import annotations

from penstock.agent.pairs.fleet_pairs import MAX_PAIRS, list_pairs
from penstock.agent.pairs.side_facts import revision_of, weights_word
from penstock.agent.pairs.speed_limits import (
    SLOW_AGAINST_SIBLINGS,
    SLOW_AGAINST_USUAL,
    slowness,
)
from penstock.agent.pairs.verdict import PairVerdict, compare_sides

__all__ = [
    "MAX_PAIRS",
    "SLOW_AGAINST_SIBLINGS",
    "SLOW_AGAINST_USUAL",
    "PairVerdict",
    "compare_sides",
    "list_pairs",
    "revision_of",
    "slowness",
    "weights_word",
]
