"""What a router is told of peers: health as engines see it, and pairs that must not be formed."""

from __future__ import annotations

from penstock.agent.views.router_feed.build import MAX_BODY_BYTES, agent_feed, bounded_json, relay_feed
from penstock.agent.views.router_feed.model import (
    MAX_READERS,
    MAX_ROWS,
    AgentFeed,
    FeedEndpoint,
    RelayFeed,
    State,
)
from penstock.agent.views.router_feed.readings import FeedAnswers, PeerReading, readings

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_READERS",
    "MAX_ROWS",
    "AgentFeed",
    "FeedAnswers",
    "FeedEndpoint",
    "PeerReading",
    "RelayFeed",
    "State",
    "agent_feed",
    "bounded_json",
    "readings",
    "relay_feed",
]
