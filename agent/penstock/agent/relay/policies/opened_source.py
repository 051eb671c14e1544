"""The source that a relay writes policies to, by its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.policy.sources.nats_options import nats_access

if TYPE_CHECKING:
    from penstock.agent.relay.config import RelayConfig
    from penstock.agent.relay.policies.fleet_policies import FleetPolicies


def fleet_policies(config: RelayConfig) -> FleetPolicies | None:
    """Return the policies at ``--policy-source``; None without one. Clients are imported late, as they take time.

    Raises:
        ConfigError: an option is wrong, or a client is not installed.

    """
    spec = config.policy_source
    if spec is None:
        return None
    if spec.kind == "nats":
        access = nats_access(spec, config.nats, "--policy-source")
        from penstock.agent.relay.policies.nats_policies import NatsPolicies  # noqa: PLC0415

        return NatsPolicies(spec.name, access, spec.place)
    from penstock.agent.policy.sources.followed_objects import cluster_access  # noqa: PLC0415
    from penstock.agent.relay.policies.kubernetes_policies import KubernetesPolicies  # noqa: PLC0415

    found = cluster_access(spec, config.kube_api, config.kube_token_file, config.kube_ca)
    return KubernetesPolicies(spec.name, found)
