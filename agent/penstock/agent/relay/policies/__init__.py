"""The policies of a fleet at the source that its agents follow: a relay reads and writes them there."""

from __future__ import annotations

from penstock.agent.relay.policies.compared_engines import ComparedEngines
from penstock.agent.relay.policies.fleet_policies import FleetPolicies, FleetPolicy, FoundPolicies
from penstock.agent.relay.policies.listed_policies import LedPolicies, affected, with_source
from penstock.agent.relay.policies.open_policies import bucket_of, cluster_of, open_source
from penstock.agent.relay.policies.policy_writes import apply_policy, delete_policy, export_policies

__all__ = [
    "ComparedEngines",
    "FleetPolicies",
    "FleetPolicy",
    "FoundPolicies",
    "LedPolicies",
    "affected",
    "apply_policy",
    "bucket_of",
    "cluster_of",
    "delete_policy",
    "export_policies",
    "open_source",
    "with_source",
]
