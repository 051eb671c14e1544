"""Policies: the manifest, the merge, the store, and the push to the engines."""

from __future__ import annotations

from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.distribution.service import PolicyFeedService
from penstock.agent.policy.manifest.manifest import Manifest, parse_manifest
from penstock.agent.policy.manifest.merge import effective
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderBook
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

__all__ = [
    "Manifest",
    "OrderBook",
    "Pauses",
    "PolicyDatabase",
    "PolicyFeed",
    "PolicyFeedService",
    "PolicyStore",
    "effective",
    "parse_manifest",
]
