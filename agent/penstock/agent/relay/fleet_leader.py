"""What one relay of a fleet does for all, while it holds the lease: it leads roll-outs and writes the status of policies.

It leads the roll-outs of the policies at a source, over the engines of all agents.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from penstock.agent.admin.calls import rollouts
from penstock.agent.errors import NotFoundError, PenstockError
from penstock.agent.policy.rollouts import LOOK_SECONDS, RolloutLeader
from penstock.agent.relay.object_status import open_lease, open_status
from penstock.agent.relay.policies import ComparedEngines, LedPolicies

if TYPE_CHECKING:
    from penstock.agent.relay.fleet import Fleet
    from penstock.agent.relay.object_status import Lease
    from penstock.agent.relay.policies import FleetPolicies
    from penstock.proto.v1 import admin_pb2 as admin

_log = structlog.get_logger(__name__)


class FleetLeader:
    """Orders are taken by each relay, and led by the one that holds the lease; the loop's.

    Attributes:
        rollouts: the leader; a new one each time that this relay takes the lease, for it does not know what the engines
            counted meanwhile.
        error: why the last look failed; empty if it did not.

    """

    def __init__(self, source: FleetPolicies, fleet: Fleet, lease: Lease) -> None:
        """Lead the policies at *source*."""
        self._fleet = fleet
        self._lease = lease
        self._policies = LedPolicies(source)
        self._engines = ComparedEngines()
        # A look reads and writes; an order meanwhile waits for its end.
        self._turn = asyncio.Lock()
        self.rollouts = self._new_leader()
        self.error = ""
        # Of the leaders before.
        self._aborts = 0

    @property
    def aborts(self) -> int:
        """How many roll-outs this relay has aborted by their comparison."""
        return self._aborts + self.rollouts.aborts

    def uncompared(self) -> str:
        """Return a sentence about engines whose counts a roll-out lacks; empty without any, or where another relay leads."""
        return self._engines.trouble() if self._lease.held else ""

    def _new_leader(self) -> RolloutLeader:
        engines = self._engines
        return RolloutLeader(
            self._policies, engines.targets, engines.counts, refusing=lambda: engines.refusing
        )

    async def run(self) -> None:
        """Look every 2 s while the lease is held, until cancelled."""
        led = False
        while True:
            held = self._lease.held
            if held and not led:
                self._aborts += self.rollouts.aborts
                self.rollouts = self._new_leader()
            led = held
            try:
                if held:
                    await self.look()
                self._complain("")
            except PenstockError as error:
                self._complain(str(error))
            except Exception as error:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("the roll-outs could not be led; retrying")
                self.error = f"an error of the relay ({type(error).__name__}); its log has more"
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Take each roll-out as far as its evidence goes.

        Raises:
            PenstockError: the source is away.

        """
        async with self._turn:
            await self._read()
            # Reading took its time.
            if self._lease.held:
                await self.rollouts.look()

    async def set(self, request: admin.SetPolicyRolloutRequest) -> admin.PolicyRollout:
        """Start, pause, resume, promote or abort a roll-out.

        Raises:
            PenstockError: as at an agent, or the source is away.

        """
        async with self._turn:
            await self._read()
            return await rollouts.set_policy_rollout(self, request)

    async def list(self, request: admin.ListPolicyRolloutsRequest) -> list[admin.PolicyRollout]:
        """Return the roll-outs of the source; comparisons are known to the leading relay only.

        Raises:
            PenstockError: the source is away.

        """
        async with self._turn:
            await self._read()
            try:
                return list((await rollouts.list_policy_rollouts(self, request)).rollouts)
            except NotFoundError:
                return []

    async def _read(self) -> None:
        agents, answers = await self._fleet.engines()
        self._engines.look(agents, answers)
        await self._policies.read()

    def _complain(self, error: str) -> None:
        if error and error != self.error:
            _log.warning("the roll-outs cannot be led; retrying", reason=error)
        self.error = error


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
