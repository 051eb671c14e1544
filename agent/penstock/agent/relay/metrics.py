"""The relay's own metrics: its agents by state, and its process."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.agent.relay.connection import AWAY, CONNECTING, UP
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from penstock.agent.relay.fleet import Fleet


AGENTS = "penstock_relay_agents"


def render_metrics(fleet: Fleet) -> tuple[bytes, str]:
    """Return the exposition and its content type."""
    registry = CollectorRegistry()
    agents = Gauge(AGENTS, "Agents of this relay by state.", ["state"], registry=registry)
    states = Counter(agent.state for agent in fleet.agents())
    for state in (CONNECTING, UP, AWAY):
        agents.labels(state).set(states[state])
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST
