"""The policies of a fleet at the source that its agents follow: a relay reads and writes them there."""

from __future__ import annotations

from penstock.agent.relay.policies.affected_engines import affected
from penstock.agent.relay.policies.fleet_policies import FleetPolicies, FleetPolicy, FoundPolicies
from penstock.agent.relay.policies.listed_policies import with_source
from penstock.agent.relay.policies.open_policies import cluster_of, open_source
from penstock.agent.relay.policies.policy_writes import apply_policy, delete_policy, export_policies

__all__ = [
    "FleetPolicies",
    "FleetPolicy",
    "FoundPolicies",
    "affected",
    "apply_policy",
    "cluster_of",
    "delete_policy",
    "export_policies",
    "open_source",
    "with_source",
]
