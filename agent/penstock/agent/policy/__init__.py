"""Policies: the manifest, the merge, the store, and the push to the engines."""

from __future__ import annotations

from penstock.agent.policy.database import PolicyDatabase
from penstock.agent.policy.feed import PolicyFeed
from penstock.agent.policy.merge import effective
from penstock.agent.policy.model import Manifest, parse_manifest
from penstock.agent.policy.order_book import OrderBook
from penstock.agent.policy.pauses import Pauses
from penstock.agent.policy.sqlite_store import PolicyStore
from penstock.agent.policy.watch import PolicyFeedService

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
