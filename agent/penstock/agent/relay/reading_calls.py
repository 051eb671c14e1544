"""The calls of a relay that read: one answer of those of all agents."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.admin.lookups import AgentSignals, server_ejections, sum_signals
from penstock.agent.errors import PenstockError
from penstock.agent.relay import merged_answers, merged_sides
from penstock.agent.relay.asking import AskingService, author_at_agents, for_agent, named_answers
from penstock.agent.relay.merged_answers import merge_bills, qualify
from penstock.agent.relay.merged_peers import add_cells, cells_request, merge_peers, name_peers
from penstock.agent.relay.merged_sides import causes_between_agents
from penstock.agent.relay.policies import (
    with_source,
)
from penstock.agent.server.grpc_server import MAX_SEND_BYTES
from penstock.agent.views.coverage import COVERAGE
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.agent.relay.connection import AgentConnection
    from penstock.agent.server.status_codes import Call

# Of an answer that makes all of them too large: without it the others are sent.
_LARGE_BYTES = MAX_SEND_BYTES // 4
_TOO_LARGE = (
    "its answer has {} MiB, too much beside the others'; narrow the request, or ask it by its own address"
)


def _merged(
    method: str, merging: Callable[[Sequence[tuple[str, Any]], Any], Any]
) -> Callable[[ReadingCalls, Any, Call], Awaitable[Any]]:
    async def call(self: ReadingCalls, request: Any, context: Call) -> Any:
        left_out: dict[str, tuple[AgentConnection, str]] = {}
        while True:
            answers = await self._fleet.ask(
                method,
                lambda agent: None if agent.place.name in left_out else for_agent(request, agent.place.name),
                context.time_remaining(),
            )
            answers = answers._replace(missing=(*answers.missing, *left_out.values()))
            if not answers.found:
                await self._check(answers, context, request)
            # What agents answer may be much: the loop does not stand still for it.
            merged, size = await asyncio.to_thread(_sized, merging, named_answers(answers), request)
            largest = max(answers.found, key=lambda each: each.size)
            if size <= MAX_SEND_BYTES or largest.size < _LARGE_BYTES or len(answers.found) == 1:
                await self._check(answers, context, request)
                return merged
            left_out[largest.agent.place.name] = (largest.agent, _TOO_LARGE.format(largest.size >> 20))

    return call


def _sized(merging: Callable[..., Any], named: Sequence[tuple[str, Any]], request: Any) -> tuple[Any, int]:
    merged = merging(named, request)
    return merged, merged.ByteSize()


class ReadingCalls(AskingService):
    """The methods of ``penstock.v1.Admin`` that change nothing, except streams."""

    ListEngines = _merged("ListEngines", merged_answers.engines)
    ListPairs = _merged("ListPairs", merged_answers.pairs)
    ListRequests = _merged("ListRequests", merged_answers.requests)
    ListHolders = _merged("ListHolders", merged_answers.holders)
    ListEvents = _merged("ListEvents", merged_answers.events)
    ListAudit = _merged("ListAudit", merged_answers.audit)
    ListQuarantines = _merged("ListQuarantines", merged_answers.quarantines)
    ListDrills = _merged("ListDrills", merged_answers.drills)
    WhatIf = _merged("WhatIf", merged_answers.what_if)
    GetBill = _merged("GetBill", merge_bills)

    async def GetStatus(  # noqa: N802  (the wire's names, so below)
        self, request: admin.GetStatusRequest, context: Call
    ) -> admin.AgentStatus:
        """Return the relay's agents with the status of each; it answers without any of them, too."""
        # To try the trace backends takes longer than agents have for an answer.
        request.try_backend = False
        answers = await self._fleet.ask("GetStatus", request, context.time_remaining())
        status = admin.AgentStatus(version=__version__, degraded=self._fleet.trouble())
        status.start_time.FromNanoseconds(self._start_time)
        status.now.FromNanoseconds(time.time_ns())
        found = {answer.agent.place.name: answer.response for answer in answers.found}
        for agent in self._fleet.agents():
            status.agents.append(_relayed(agent, found.get(agent.place.name)))
        return status

    async def ListPeers(  # noqa: N802
        self, request: admin.ListPeersRequest, context: Call
    ) -> admin.ListPeersResponse:
        """Return the peers of all agents, with the engines of other agents named; of a table, all cells."""
        named = named_answers(await self._ask("ListPeers", request, context))
        merged = await asyncio.to_thread(merge_peers, named, request)
        if request.most_peers and merged.peers and len(named) > 1 and not merged.total_peers:
            cells = cells_request(merged, request)
            # An agent that has gone since costs the cells that it would have added.
            more = await self._fleet.ask(
                "ListPeers", lambda agent: for_agent(cells, agent.place.name), context.time_remaining()
            )
            await asyncio.to_thread(add_cells, merged, named_answers(more), cells)
        engines = await self._addresses.engines(context.time_remaining())
        await asyncio.to_thread(name_peers, merged.peers, engines)
        return merged

    async def ListEjections(  # noqa: N802
        self, request: admin.ListEjectionsRequest, context: Call
    ) -> admin.ListEjectionsResponse:
        """Return the servers that are out of rotation, and what the leader has made of others at its last look."""
        asked = admin.ListEnginesRequest(selector=request.selector, without_counters=True)
        engines = await self.ListEngines(asked, context)
        answer = await asyncio.to_thread(server_ejections, engines.engines)
        self._ejections.add_to(answer, {(each.key.server, each.key.engine) for each in engines.engines})
        return answer

    async def ListPolicies(  # noqa: N802
        self, request: admin.ListPoliciesRequest, context: Call
    ) -> admin.ListPoliciesResponse:
        """Return the policies of the source, with what agents have of them, and those of agents alone."""
        found = None
        if self._policies is not None:
            with suppress(PenstockError):
                # While the source is away, what the agents have of it is known.
                found = await self._policies.read()
        if found is None or self._policies is None:
            named = named_answers(await self._ask("ListPolicies", request, context))
            return await asyncio.to_thread(merged_answers.policies, named, request)
        answers = await self._fleet.ask("ListPolicies", admin.ListPoliciesRequest(), context.time_remaining())
        if answers.missing:
            context.set_trailing_metadata(((COVERAGE, answers.coverage().SerializeToString()),))
        merged = await asyncio.to_thread(merged_answers.policies, named_answers(answers), request)
        listed = await asyncio.to_thread(
            with_source, merged.policies, found, self._policies.name, request.name
        )
        if request.name and not listed:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"policy {request.name!r} does not exist; 'agentctl get policy' lists policies",
            )
        return admin.ListPoliciesResponse(policies=listed)

    async def GetEffectivePolicy(  # noqa: N802
        self, request: admin.GetEffectivePolicyRequest, context: Call
    ) -> admin.EffectivePolicy:
        """Return the answer of the agent that has the engine."""
        answers = await self._ask("GetEffectivePolicy", request, context)
        name, answer = named_answers(answers)[0]
        found: admin.EffectivePolicy = answer
        qualify(found.key, name)
        return found

    async def GetSignals(self, request: admin.GetSignalsRequest, context: Call) -> admin.Signals:  # noqa: N802
        """Return what the engines of all agents did together, by our clock."""
        answers = await self._ask("GetSignals", request, context)
        ahead = {agent.place.name: round(agent.clock_offset * 1e9) for agent in self._fleet.agents()}
        said = [AgentSignals(answer, ahead.get(name, 0)) for name, answer in named_answers(answers)]
        return await asyncio.to_thread(sum_signals, said, time.time_ns())

    async def ListSuspects(  # noqa: N802
        self, request: admin.ListSuspectsRequest, context: Call
    ) -> admin.ListSuspectsResponse:
        """Return answers that may be wrong, those included that read from another agent's engine."""
        del request.late_request_ids[:]
        own = await self._ask("ListSuspects", request, context)
        everywhere, fleet = own, admin.ListSuspectsRequest()
        if request.HasField("selector"):
            # The owner of the blocks may be an engine that is not selected.
            fleet.CopyFrom(request)
            fleet.ClearField("selector")
            everywhere = await self._ask("ListSuspects", fleet, context)
        late = await asyncio.to_thread(merged_sides.halves, named_answers(everywhere))
        readers: list[tuple[str, Any]] = []
        if late:
            asked = admin.ListSuspectsRequest()
            asked.CopyFrom(request)
            asked.limit = merged_sides.MAX_LATE_IDS
            asked.late_request_ids.extend(dict.fromkeys(half.peer_request_id for half in late))
            readers = named_answers(await self._ask("ListSuspects", asked, context))
        answers = [named_answers(own), readers, *([] if everywhere is own else [named_answers(everywhere)])]

        def join() -> admin.ListSuspectsResponse:
            for named in answers:
                merged_sides.qualify_suspects(named)
            return merged_sides.joined(named_answers(own), late, readers, request)

        return await asyncio.to_thread(join)

    async def Diagnose(  # noqa: N802
        self, request: admin.DiagnoseRequest, context: Call
    ) -> admin.Diagnosis:
        """Return one diagnosis of all agents, which says whose is missing."""
        if request.HasField("at"):
            answers = await self._ask("Diagnose", request, context)
            missing = [(agent.place.name, reason) for agent, reason in answers.missing]
            return await asyncio.to_thread(
                merged_answers.past_diagnosis, named_answers(answers), request, missing
            )
        pairs, answers = await asyncio.gather(
            self._fleet.ask("ListPairs", admin.ListPairsRequest(), context.time_remaining()),
            self._ask("Diagnose", request, context),
        )
        missing = [(agent.place.name, reason) for agent, reason in answers.missing]
        named = named_answers(answers)

        def merged() -> admin.Diagnosis:
            between = causes_between_agents(named_answers(pairs), named, request, time.time_ns())
            return merged_answers.diagnosis(named, request, missing, between)

        return await asyncio.to_thread(merged)

    async def GetTrace(self, request: admin.GetTraceRequest, context: Call) -> admin.Trace:  # noqa: N802
        """Return the spans of all sides of a request."""
        sides = await self._sides("GetTrace", request, context)
        return await asyncio.to_thread(merged_answers.trace, sides)

    async def Explain(  # noqa: N802
        self, request: admin.GetTraceRequest, context: Call
    ) -> admin.Explanation:
        """Return what all sides say about a request."""
        sides = await self._sides("Explain", request, context)
        agents = {agent.place.name: agent for agent in self._fleet.agents()}

        def clock(name: str) -> tuple[float, float]:
            agent = agents.get(name)
            return (0.0, 0.0) if agent is None else (agent.clock_offset, agent.round_trip / 2)

        return await asyncio.to_thread(merged_answers.explanation, sides, clock)

    async def _sides(
        self, method: str, request: admin.GetTraceRequest, context: Call
    ) -> list[tuple[str, Any]]:
        """Ask for a request, and then by its trace for the sides that know it by another id."""
        answers = await self._ask(method, request, context)
        named = named_answers(answers)
        known = {name for name, _ in named}
        traces = {response.trace_id for _, response in named if response.trace_id}
        if len(traces) == 1 and answers.refused:
            by_trace = admin.GetTraceRequest(request_id=traces.pop())
            others = await self._fleet.ask(
                method,
                lambda agent: None if agent.place.name in known else by_trace,
                context.time_remaining(),
            )
            named += named_answers(others)
        return named

    async def ListPolicyRollouts(  # noqa: N802
        self, request: admin.ListPolicyRolloutsRequest, context: Call
    ) -> admin.ListPolicyRolloutsResponse:
        """Return the roll-outs of the source's policies, and those that agents lead."""
        led: list[admin.PolicyRollout] = []
        if self._leader is not None:
            # While the source is away, the agents have what they have read of it.
            with suppress(PenstockError):
                led = await self._leader.list(request)
        if request.name and led:
            return admin.ListPolicyRolloutsResponse(rollouts=led)
        answers = await self._ask("ListPolicyRollouts", request, context)
        own = await asyncio.to_thread(merged_answers.rollouts, named_answers(answers), request)
        names = {each.name for each in led}
        led += [each for each in own.rollouts if each.name not in names]
        return admin.ListPolicyRolloutsResponse(rollouts=led)

    async def GetStacks(  # noqa: N802
        self, request: admin.GetStacksRequest, context: Call
    ) -> admin.EngineStacks:
        """Return the answer of the agent that has the engine."""
        request.author = author_at_agents(request.author)
        name, answer = named_answers(await self._ask("GetStacks", request, context))[0]
        found: admin.EngineStacks = answer
        qualify(found.key, name)
        return found


def _relayed(agent: AgentConnection, status: admin.AgentStatus | None) -> admin.RelayedAgent:
    message = admin.RelayedAgent(
        name=agent.place.name,
        address=agent.place.address,
        state=agent.state,
        error=agent.error,
        clock_offset_nano=int(agent.clock_offset * 1e9),
    )
    message.since.FromNanoseconds(int(agent.since * 1e9))
    message.round_trip.FromNanoseconds(int(agent.round_trip * 1e9))
    if status is not None:
        message.status.CopyFrom(status)
    return message
