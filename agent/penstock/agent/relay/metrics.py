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
    from penstock.agent.relay.status import StatusKeeper


AGENTS = "penstock_relay_agents"
LEASE_HELD = "penstock_relay_lease_held"
STATUS_PATCHES = "penstock_relay_status_patches"


def render_metrics(fleet: Fleet, status: StatusKeeper | None = None) -> tuple[bytes, str]:
    """Return the exposition and its content type."""
    registry = CollectorRegistry()
    agents = Gauge(AGENTS, "Agents of this relay by state.", ["state"], registry=registry)
    states = Counter(agent.state for agent in fleet.agents())
    for state in (CONNECTING, UP, AWAY):
        agents.labels(state).set(states[state])
    if status is not None:
        _add_status(registry, status)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _add_status(registry: CollectorRegistry, status: StatusKeeper) -> None:
    held = Gauge(LEASE_HELD, "1 while this relay writes the status of the policies.", registry=registry)
    held.set(status.lease.held)
    patches = Gauge(STATUS_PATCHES, "Writes of a policy's status.", ["result"], registry=registry)
    for result in ("ok", "failed"):
        patches.labels(result).set(status.writer.patches[result])
