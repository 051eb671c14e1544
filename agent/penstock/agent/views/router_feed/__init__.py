"""What a router is told of peers: health as engines see it, and pairs that must not be formed."""

from __future__ import annotations

from penstock.agent.views.router_feed.build import (
    MAX_BODY_BYTES,
    FeedAnswers,
    agent_feed,
    bounded_json,
    relay_feed,
)
from penstock.agent.views.router_feed.model import (
    MAX_READERS,
    MAX_ROWS,
    AgentFeed,
    FeedEndpoint,
    RelayFeed,
    State,
)

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_READERS",
    "MAX_ROWS",
    "AgentFeed",
    "FeedAnswers",
    "FeedEndpoint",
    "RelayFeed",
    "State",
    "agent_feed",
    "bounded_json",
    "relay_feed",
]
