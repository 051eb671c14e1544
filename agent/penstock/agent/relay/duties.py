"""What one relay of a fleet does for all: it leads roll-outs and writes the status of policies, while it holds the lease."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.relay.fleet_leader import FleetLeader
from penstock.agent.relay.status import open_lease, open_status

if TYPE_CHECKING:
    from penstock.agent.relay.fleet import Fleet
    from penstock.agent.relay.policies import FleetPolicies


class Duties:
    """A lease and what its holder does.

    Attributes:
        lease: of this relay.
        leader: of the roll-outs.
        writer: of the status; None where policies have none.

    """

    def __init__(self, policies: FleetPolicies, fleet: Fleet) -> None:
        """Prepare them for the policies of a fleet."""
        self.lease = open_lease(policies)
        self.leader = FleetLeader(policies, fleet, self.lease)
        self.writer = open_status(policies, fleet, self.lease)

    async def run(self) -> None:
        """Do them until cancelled."""
        duties = [self.lease.run(), self.leader.run()]
        if self.writer is not None:
            duties.append(self.writer.run())
        # When it is cancelled, it waits for the end of all.
        async with asyncio.TaskGroup() as group:
            for duty in duties:
                group.create_task(duty)

    async def close(self) -> None:
        """Let another relay do them at once, after :meth:`run` has ended."""
        await self.lease.give_back()

    def trouble(self) -> str:
        """Return a sentence where they cannot be done; empty where they can."""
        written = "" if self.writer is None else self.writer.error
        problem = written or self.leader.error or self.lease.error
        if problem:
            return f"policies are not led, nor their status written: {problem}"
        return self.leader.uncompared()
