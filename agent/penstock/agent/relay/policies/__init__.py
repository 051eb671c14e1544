"""The policies of a fleet at the source that its agents follow: a relay reads and writes them there."""

from __future__ import annotations

from penstock.agent.relay.policies.fleet_policies import FleetPolicies, FleetPolicy, FoundPolicies

__all__ = ["FleetPolicies", "FleetPolicy", "FoundPolicies"]
