"""What writes the status of a fleet's policies, where their source has one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from penstock.agent.relay.policies import cluster_of
from penstock.agent.relay.status.fleet_words import FleetWords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.relay.policies import FleetPolicies
    from penstock.agent.relay.status.lease import Lease
    from penstock.agent.relay.status.writer import StatusWriter
    from penstock.proto.v1.admin_pb2 import AgentStatus, ListPoliciesResponse


class Asked(Protocol):
    """Asks all agents of a fleet; see ``Fleet``."""

    async def policies(self) -> tuple[Mapping[str, ListPoliciesResponse], list[str]]:
        """Return the answers by agent, and who is missing."""

    async def statuses(self) -> Mapping[str, AgentStatus]:
        """Return the answers by agent."""


class StatusKeeper:
    """A lease and what its holder writes.

    Attributes:
        lease: of this relay.
        writer: writes while the lease is held.

    """

    def __init__(self, lease: Lease, writer: StatusWriter) -> None:
        self.lease = lease
        self.writer = writer

    async def run(self) -> None:
        """Keep both until cancelled."""
        await asyncio.gather(self.lease.run(), self.writer.run())

    def trouble(self) -> str:
        """Return a sentence where the status cannot be written; empty where it can."""
        problem = self.writer.error or self.lease.error
        return f"the status of the policies is not written: {problem}" if problem else ""


def open_status(policies: FleetPolicies, fleet: Asked) -> StatusKeeper | None:
    """Return what writes the status at the source of *policies*; None where policies have none."""
    access = cluster_of(policies)
    if access is None:
        return None
    from penstock.agent.relay.status.kubernetes_lease import KubernetesLease  # noqa: PLC0415
    from penstock.agent.relay.status.writer import StatusWriter  # noqa: PLC0415

    lease = KubernetesLease(access)

    async def words() -> FleetWords:
        (found, missing), statuses = await asyncio.gather(fleet.policies(), fleet.statuses())
        return FleetWords({name: each.policies for name, each in found.items()}, statuses, missing)

    return StatusKeeper(lease, StatusWriter(access, lease, words))
