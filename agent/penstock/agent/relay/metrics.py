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
    from penstock.agent.relay.duties import Duties
    from penstock.agent.relay.fleet import Fleet


AGENTS = "penstock_relay_agents"
LEASE_HELD = "penstock_relay_lease_held"
STATUS_PATCHES = "penstock_relay_status_patches"
ROLLOUT_ABORTS = "penstock_relay_rollout_aborts"


def render_metrics(fleet: Fleet, duties: Duties | None = None) -> tuple[bytes, str]:
    """Return the exposition and its content type."""
    registry = CollectorRegistry()
    agents = Gauge(AGENTS, "Agents of this relay by state.", ["state"], registry=registry)
    states = Counter(agent.state for agent in fleet.agents())
    for state in (CONNECTING, UP, AWAY):
        agents.labels(state).set(states[state])
    if duties is not None:
        _add_duties(registry, duties)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _add_duties(registry: CollectorRegistry, duties: Duties) -> None:
    held = Gauge(
        LEASE_HELD, "1 while this relay leads roll-outs and writes the status of policies.", registry=registry
    )
    held.set(duties.lease.held)
    aborts = Gauge(
        ROLLOUT_ABORTS, "Roll-outs that this relay has aborted by their comparison.", registry=registry
    )
    aborts.set(duties.leader.aborts)
    if duties.writer is None:
        return
    patches = Gauge(STATUS_PATCHES, "Writes of a policy's status.", ["result"], registry=registry)
    for result in ("ok", "failed"):
        patches.labels(result).set(duties.writer.patches[result])
