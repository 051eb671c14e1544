"""``penstock-relay``: the admin service of many agents at one address."""

from __future__ import annotations

from penstock.agent.relay.agent_places import AgentPlace, AgentSet, parse_agents

__all__ = ["AgentPlace", "AgentSet", "parse_agents"]
