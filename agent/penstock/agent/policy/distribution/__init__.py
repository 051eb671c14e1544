"""Agent to engine, as in xDS: full state per push, nonce, ACK/NACK, delivery."""

from __future__ import annotations

from penstock.agent.policy.distribution.delivery import (
    EngineProgress,
    KnownEngine,
    Progress,
    delivery_progress,
    follow_delivery,
)
from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.distribution.push_encoding import body_of
from penstock.agent.policy.distribution.service import PolicyFeedService
from penstock.agent.policy.distribution.subscriber import EngineAck, Subscriber
from penstock.agent.policy.distribution.traced_policies import PolicySources, SampleRatios

__all__ = [
    "EngineAck",
    "EngineProgress",
    "KnownEngine",
    "PolicyFeed",
    "PolicyFeedService",
    "PolicySources",
    "Progress",
    "SampleRatios",
    "Subscriber",
    "body_of",
    "delivery_progress",
    "follow_delivery",
]
