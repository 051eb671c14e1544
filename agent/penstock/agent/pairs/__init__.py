"""Pairs of engines: which facts of two differ, what that does to their transfers, which two are a pair, and what an encoder does. Pure."""

from __future__ import annotations

from penstock.agent.pairs.encoder_state import EncoderStates
from penstock.agent.pairs.fleet_pairs import MAX_PAIRS, list_pairs, slowness
from penstock.agent.pairs.shared_ids import SharedId, add_status, shared_ids
from penstock.agent.pairs.verdict import (
    POOL_LABEL,
    WEIGHTS_LABEL,
    PairVerdict,
    compare_sides,
    has_nixl,
    revision_of,
    versions_apart,
)

__all__ = [
    "MAX_PAIRS",
    "POOL_LABEL",
    "WEIGHTS_LABEL",
    "EncoderStates",
    "PairVerdict",
    "SharedId",
    "add_status",
    "compare_sides",
    "has_nixl",
    "list_pairs",
    "revision_of",
    "shared_ids",
    "slowness",
    "versions_apart",
]
