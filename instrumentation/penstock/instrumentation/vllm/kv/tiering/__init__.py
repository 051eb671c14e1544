"""Observes the P2P tier of vLLM's ``TieringOffloadingSpec``: KV that comes from another engine's memory over NIXL."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.tiering.hook import P2pTierHook, P2pTiers, tier_classes
from penstock.instrumentation.vllm.kv.tiering.promotions import EndedPromotion, Promotions

__all__ = [
    "EndedPromotion",
    "P2pTierHook",
    "P2pTiers",
    "Promotions",
    "tier_classes",
]
