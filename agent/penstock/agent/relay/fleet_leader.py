"""What one relay of a fleet does for all, while it holds the lease: roll-outs, the status of policies, ejections.

It leads the roll-outs of the policies at a source, over the engines of all agents.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.admin.calls import rollouts
from penstock.agent.errors import NotFoundError, PenstockError, in_one_line
from penstock.agent.model import EngineKey
from penstock.agent.policy.rollouts import LOOK_SECONDS, RolloutLeader
from penstock.agent.relay import merged_answers
from penstock.agent.relay.ejections import ACTIONS, EjectionLeader, SeenFleet, servers_of, votes_of
from penstock.agent.relay.merged_peers import merge_peers
from penstock.agent.relay.object_status import open_lease, open_status
from penstock.agent.relay.policies import ComparedEngines, LedPolicies
from penstock.agent.views.router_feed import FeedAnswers, readings
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.relay.ejections import EjectionBoard
    from penstock.agent.relay.fleet import Answers, Fleet
    from penstock.agent.relay.object_status import Lease
    from penstock.agent.relay.policies import FleetPolicies

# Of one agent's peers: one that has more has no vote.
_MOST_PEERS = 5_000
_AUDIT_ENTRIES = 200
_MAX_DETAILS = 300

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
        # It has looked since it took the lease.
        self._led = False
        # Of the leaders before.
        self._aborts = 0

    @property
    def aborts(self) -> int:
        """How many roll-outs this relay has aborted by their comparison."""
        return self._aborts + self.rollouts.aborts

    def known(self) -> tuple[list[Manifest], list[Target]] | None:
        """Return the policies and engines of the last look; None where it failed, or this relay does not lead."""
        if self.error or not self._led:
            return None
        return [each.manifest for each in self._policies.policies()], self._engines.targets()

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
            self._led &= held
            try:
                if held:
                    await self.look()
                    self._led = True
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


class EjectionCalls:
    """What the leader of ejections asks the agents of *fleet*."""

    def __init__(self, fleet: Fleet) -> None:
        """Ask *fleet*."""
        self._fleet = fleet

    async def seen(self) -> SeenFleet:
        """Return the servers, and the votes on each, of the agents that answer."""
        asked = (
            admin.ListEnginesRequest(without_counters=True),
            admin.ListPeersRequest(limit=_MOST_PEERS),
            admin.ListDrillsRequest(),
        )
        methods = ("ListEngines", "ListPeers", "ListDrills")
        answers = await asyncio.gather(*map(self._fleet.ask, methods, asked))
        agents = frozenset(each.place.name for each in self._fleet.agents())

        def read() -> SeenFleet:
            named = [_named(each) for each in answers]
            # The worst come first: of a list that is cut, what is well is not known.
            peers = [(name, answer) for name, answer in named[1] if answer.total <= len(answer.peers)]
            heard = {name for name, _ in peers}.intersection(*({name for name, _ in each} for each in named))
            engines = merged_answers.engines(named[0], asked[0])
            servers = servers_of(engines.engines)
            known = {address for each in servers for address in each.addresses}
            for _, answer in peers:
                kept = [row for row in answer.peers if row.peer.address in known]
                del answer.peers[:]
                answer.peers.extend(kept)
            merged = merge_peers([each for each in peers if each[0] in heard], admin.ListPeersRequest())
            drills = merged_answers.drills(named[2], asked[2]).drills
            drilled = {
                EngineKey(each.key.server, each.key.engine) for drill in drills for each in drill.engines
            }
            said = readings(FeedAnswers(merged, engines, admin.ListQuarantinesResponse()))
            return SeenFleet(servers, votes_of(said, servers, drilled), agents, agents - heard)

        # Thousands of rows take longer than the loop may stand still.
        return await asyncio.to_thread(read)

    async def audit(self) -> tuple[dict[str, list[tuple[float, admin.AuditEntry]]], frozenset[str]]:
        """Return the newest entries about ejections by agent, and all agents; with each how far its clock is ahead, seconds."""
        request = admin.ListAuditRequest(limit=_AUDIT_ENTRIES, actions=ACTIONS)
        answers = await self._fleet.ask("ListAudit", request)
        found = {
            each.agent.place.name: [(each.agent.clock_offset, entry) for entry in each.response.entries]
            for each in answers.found
        }
        return found, frozenset(each.place.name for each in self._fleet.agents())

    async def order(
        self,
        agent: str,
        request: admin.SetEjectionRequest,
        is_due: Callable[[admin.Ejection | None], bool],
    ) -> str:
        """Give an order; return why the agent refuses or does not answer, empty if it has taken it."""
        selector = merged_answers.own_selector(request.selector, agent)
        if selector is None:
            return f"agent {agent} has none of these engines"
        listed = await self._ask_one(
            agent, "ListEngines", admin.ListEnginesRequest(selector=selector, without_counters=True)
        )
        if isinstance(listed, str):
            return listed
        # Looking took its time, and somebody may have ordered meanwhile.
        present = [each.ejection for each in listed.engines if each.HasField("ejection")]
        if not is_due(present[0] if present else None):
            return "somebody has ordered something else meanwhile"
        own = admin.SetEjectionRequest()
        own.CopyFrom(request)
        own.selector.CopyFrom(selector)
        done = await self._ask_one(agent, "SetEjection", own)
        return done if isinstance(done, str) else ""

    async def _ask_one(self, agent: str, method: str, request: Message) -> Any:
        """Return the answer of *agent*, or why there is none, in words."""
        answers = await self._fleet.ask(method, lambda each: request if each.place.name == agent else None)
        for _, error in answers.refused:
            return in_one_line(error.details() or error.code().name, _MAX_DETAILS)
        for _, why in answers.missing:
            return why
        return answers.found[0].response if answers.found else f"agent {agent} has gone"


def _named(answers: Answers) -> list[tuple[str, Any]]:
    return [(each.agent.place.name, each.response) for each in answers.found]


class Duties:
    """A lease and what its holder does.

    Attributes:
        lease: of this relay.
        leader: of the roll-outs.
        writer: of the status; None where policies have none.
        ejections: of servers by policy.

    """

    def __init__(self, policies: FleetPolicies, fleet: Fleet, board: EjectionBoard) -> None:
        """Prepare them for the policies of a fleet; *board* is told what is made of servers."""
        self.lease = open_lease(policies)
        self.leader = FleetLeader(policies, fleet, self.lease)
        self.writer = open_status(policies, fleet, self.lease)
        self.ejections = EjectionLeader(EjectionCalls(fleet), self.lease, self.leader.known, board)

    async def run(self) -> None:
        """Do them until cancelled."""
        duties = [self.lease.run(), self.leader.run(), self.ejections.run()]
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
        if self.ejections.error:
            return f"no server is taken out of rotation by policy: {self.ejections.error}"
        return self.leader.uncompared()
