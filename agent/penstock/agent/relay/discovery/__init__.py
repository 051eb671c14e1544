"""Where a relay's agents are: a list, names of DNS, pods of Kubernetes, a registry of NATS."""

from __future__ import annotations

from penstock.agent.relay.discovery.agent_finder import AgentFinder
from penstock.agent.relay.discovery.agent_places import AgentPlace, AgentSet, PodSelector, parse_agents
from penstock.agent.relay.discovery.pod_reader import pod_reader
from penstock.agent.relay.discovery.registry_reader import registry_reader

__all__ = [
    "AgentFinder",
    "AgentPlace",
    "AgentSet",
    "PodSelector",
    "parse_agents",
    "pod_reader",
    "registry_reader",
]
