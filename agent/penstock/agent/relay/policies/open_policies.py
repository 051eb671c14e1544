"""The source that a relay writes policies to, by its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.policy.sources.options import nats_access

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.policy.kubernetes import ClusterAccess
    from penstock.agent.policy.sources import SourceSpec
    from penstock.agent.policy.sources.nats.connection import NatsAccess
    from penstock.agent.policy.sources.options import NatsFiles
    from penstock.agent.relay.policies.fleet_policies import FleetPolicies


def open_source(
    spec: SourceSpec,
    nats: NatsFiles,
    *,
    api: str = "",
    token_file: Path | None = None,
    ca: Path | None = None,
) -> FleetPolicies:
    """Return the policies at *spec*. Clients are imported late, as they take time.

    Args:
        spec: of ``--policy-source``.
        nats: the files for a bucket.
        api: address of the API server, for a namespace; empty for that of this pod.
        token_file: for *api*.
        ca: for *api*.

    Raises:
        ConfigError: an option is wrong, or a client is not installed.

    """
    if spec.kind == "nats":
        access = nats_access(spec, nats, "--policy-source")
        from penstock.agent.relay.policies.nats_policies import NatsPolicies  # noqa: PLC0415

        return NatsPolicies(spec.name, access, spec.place)
    from penstock.agent.policy.sources.followed_objects import cluster_access  # noqa: PLC0415
    from penstock.agent.relay.policies.kubernetes_policies import KubernetesPolicies  # noqa: PLC0415

    return KubernetesPolicies(spec.name, cluster_access(spec, api, token_file, ca))


def cluster_of(policies: FleetPolicies) -> ClusterAccess | None:
    """Return the access to the namespace of *policies*; None where they are no objects of Kubernetes."""
    return getattr(policies, "access", None) if policies.kind == "kubernetes" else None


def bucket_of(policies: FleetPolicies) -> NatsAccess | None:
    """Return the access to the servers of *policies*; None where they are no keys of NATS."""
    return getattr(policies, "access", None) if policies.kind == "nats" else None
