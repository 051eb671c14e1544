"""What writes the status of a fleet's policies, where their source has one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from penstock.agent.relay.object_status.object_status import FleetWords
from penstock.agent.relay.policies import bucket_of, cluster_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.relay.object_status.lease import Lease
    from penstock.agent.relay.object_status.writer import StatusWriter
    from penstock.agent.relay.policies import FleetPolicies
    from penstock.proto.v1.admin_pb2 import AgentStatus, ListPoliciesResponse


class Asked(Protocol):
    """Asks all agents of a fleet; see ``Fleet``."""

    async def policies(self) -> tuple[Mapping[str, ListPoliciesResponse], list[str]]:
        """Return the answers by agent, and the agents without an answer."""

    async def statuses(self) -> Mapping[str, AgentStatus]:
        """Return the answers by agent."""


def open_lease(policies: FleetPolicies) -> Lease:
    """Return the lease at the source of *policies*."""
    access = cluster_of(policies)
    if access is not None:
        from penstock.agent.relay.object_status.kubernetes_lease import KubernetesLease  # noqa: PLC0415

        return KubernetesLease(access)
    from penstock.agent.relay.object_status.nats_lease import NatsLease  # noqa: PLC0415

    servers = bucket_of(policies)
    if servers is None:
        raise TypeError(f"policies of kind {policies.kind} have no lease")
    return NatsLease(servers, policies.place)


def open_status(policies: FleetPolicies, fleet: Asked, lease: Lease) -> StatusWriter | None:
    """Return what writes the status at the source of *policies*; None where policies have none."""
    access = cluster_of(policies)
    if access is None:
        return None
    from penstock.agent.relay.object_status.writer import StatusWriter  # noqa: PLC0415

    async def words() -> FleetWords:
        (found, missing), statuses = await asyncio.gather(fleet.policies(), fleet.statuses())
        return FleetWords({name: each.policies for name, each in found.items()}, statuses, missing)

    return StatusWriter(access, lease, words)
