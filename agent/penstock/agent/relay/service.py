"""The ``Admin`` service of a relay: each call asks all agents, and says who did not answer."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.errors import ContractError, PenstockError
from penstock.agent.quoted_errors import in_one_line
from penstock.agent.relay import merge, suspects
from penstock.agent.relay.addresses import FleetAddresses, name_peers
from penstock.agent.relay.bills import merge_bills
from penstock.agent.relay.engine_names import qualify, qualify_all
from penstock.agent.relay.fleet import FULL
from penstock.agent.relay.pair_causes import causes_between_agents
from penstock.agent.relay.peers import add_cells, cells_request, merge_peers
from penstock.agent.relay.policies import (
    affected,
    apply_policy,
    delete_policy,
    export_policies,
    with_source,
)
from penstock.agent.relay.requests import engines_of, for_agent, which_agent
from penstock.agent.relay.streams import MAX_WATCHES, EventStream, follow_deliveries
from penstock.agent.server.grpc_server import MAX_SEND_BYTES
from penstock.agent.server.page_tokens import PageTokens
from penstock.agent.server.status_codes import abort_with
from penstock.agent.views.coverage import COVERAGE
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import admin_pb2_grpc
from penstock.proto.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from penstock.agent.relay.connection import AgentConnection
    from penstock.agent.relay.fleet import Answers, Fleet
    from penstock.agent.relay.fleet_leader import FleetLeader
    from penstock.agent.relay.policies import FleetPolicies

Context = grpc.aio.ServicerContext[Any, Any]
_NAMED = 3
# Characters of an agent's own sentence.
_MAX_DETAILS = 500
# Of an answer that makes all of them too large: without it the others are sent.
_LARGE_BYTES = MAX_SEND_BYTES // 4
_TOO_LARGE = (
    "its answer has {} MiB, too much beside the others'; narrow the request, or ask it by its own address"
)
# What a caller may have to give otherwise: any agent's word is as good as another's.
_WRONG_REQUEST = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
_NO_SOURCE = (
    "this relay writes no policies: pods that start later would not have them; start it with the --policy-source that "
    "the agents follow, write them there, or write to one agent by its own address"
)


def _merged(
    method: str, merging: Callable[[Sequence[tuple[str, Any]], Any], Any]
) -> Callable[[RelayService, Any, Context], Awaitable[Any]]:
    async def call(self: RelayService, request: Any, context: Context) -> Any:
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
            merged, size = await asyncio.to_thread(_sized, merging, _named(answers), request)
            largest = max(answers.found, key=lambda each: each.size)
            if size <= MAX_SEND_BYTES or largest.size < _LARGE_BYTES or len(answers.found) == 1:
                await self._check(answers, context, request)
                return merged
            left_out[largest.agent.place.name] = (largest.agent, _TOO_LARGE.format(largest.size >> 20))

    return call


def _sized(merging: Callable[..., Any], named: Sequence[tuple[str, Any]], request: Any) -> tuple[Any, int]:
    merged = merging(named, request)
    return merged, merged.ByteSize()


def _written(
    call: Callable[[FleetPolicies, Any], Awaitable[Any]],
) -> Callable[[RelayService, Any, Context], Awaitable[Any]]:
    async def write(self: RelayService, request: Any, context: Context) -> Any:
        if self._policies is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _NO_SOURCE)
        changes = isinstance(request, admin.ApplyPolicyRequest | admin.DeletePolicyRequest)
        # Before the write: afterwards they may have lost it.
        engines = admin.ListEnginesRequest()
        known = await self._fleet.ask("ListEngines", engines, context.time_remaining()) if changes else None
        try:
            response = await call(self._policies, request)
        except PenstockError as error:
            await abort_with(context, error)
        if known is not None:
            keys = await asyncio.to_thread(
                lambda: affected(merge.engines(_named(known), engines).engines, request)
            )
            response.engines.extend(admin.EngineChange(key=key) for key in keys)
            if known.missing:
                context.set_trailing_metadata(((COVERAGE, known.coverage().SerializeToString()),))
        return response

    return write


def _refused(sentence: str) -> Callable[[RelayService, Any, Context], Awaitable[Any]]:
    async def call(_self: RelayService, _request: Any, context: Context) -> Any:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)

    return call


class RelayService(admin_pb2_grpc.AdminServicer):
    """The methods of ``penstock.v1.Admin`` for all agents of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        policies: FleetPolicies | None = None,
        leader: FleetLeader | None = None,
        page: PageTokens | None = None,
    ) -> None:
        """Serve the agents of *fleet*; policies are written to *policies* and led by *leader*, None refuses that.

        *page* makes the tokens of the relay's own page.
        """
        self._page = PageTokens() if page is None else page
        self._fleet = fleet
        self._addresses = FleetAddresses(fleet)
        self._leader = leader
        self._policies = policies
        self._start_time = time.time_ns()
        self._watching = 0

    ListEngines = _merged("ListEngines", merge.engines)
    ListPairs = _merged("ListPairs", merge.pairs)
    ListRequests = _merged("ListRequests", merge.requests)
    ListHolders = _merged("ListHolders", merge.holders)
    ListEvents = _merged("ListEvents", merge.events)
    ListAudit = _merged("ListAudit", merge.audit)
    ListQuarantines = _merged("ListQuarantines", merge.quarantines)
    ListDrills = _merged("ListDrills", merge.drills)
    WhatIf = _merged("WhatIf", merge.what_if)
    GetBill = _merged("GetBill", merge_bills)

    ApplyPolicy = _written(apply_policy)
    DeletePolicy = _written(delete_policy)
    ExportPolicies = _written(export_policies)
    RollbackPolicy = _refused(
        "a relay keeps no earlier manifests; apply the one that you want again, from the place where you keep them, or "
        "from the source's own history ('nats kv history BUCKET NAME')"
    )
    ImportPolicies = _refused(
        "a relay does not write several policies as one: neither Kubernetes nor NATS does; apply them one by one "
        "('agentctl apply -f FILE'), or import them at an agent by its own address"
    )
    Backup = _refused("a relay has no state to copy; back an agent up by its own address")

    async def GetStatus(  # noqa: N802  (the wire's names, so below)
        self, request: admin.GetStatusRequest, context: Context
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
        self, request: admin.ListPeersRequest, context: Context
    ) -> admin.ListPeersResponse:
        """Return the peers of all agents, with the engines of other agents named; of a table, all cells."""
        named = _named(await self._ask("ListPeers", request, context))
        merged = await asyncio.to_thread(merge_peers, named, request)
        if request.most_peers and merged.peers and len(named) > 1 and not merged.total_peers:
            cells = cells_request(merged, request)
            # An agent that has gone since costs the cells that it would have added.
            more = await self._fleet.ask(
                "ListPeers", lambda agent: for_agent(cells, agent.place.name), context.time_remaining()
            )
            await asyncio.to_thread(add_cells, merged, _named(more), cells)
        engines = await self._addresses.engines(context.time_remaining())
        await asyncio.to_thread(name_peers, merged.peers, engines)
        return merged

    async def ListPolicies(  # noqa: N802
        self, request: admin.ListPoliciesRequest, context: Context
    ) -> admin.ListPoliciesResponse:
        """Return the policies of the source, with what agents have of them, and those of agents alone."""
        found = None
        if self._policies is not None:
            with suppress(PenstockError):
                # While the source is away, what the agents have of it is known.
                found = await self._policies.read()
        if found is None or self._policies is None:
            named = _named(await self._ask("ListPolicies", request, context))
            return await asyncio.to_thread(merge.policies, named, request)
        answers = await self._fleet.ask("ListPolicies", admin.ListPoliciesRequest(), context.time_remaining())
        if answers.missing:
            context.set_trailing_metadata(((COVERAGE, answers.coverage().SerializeToString()),))
        merged = await asyncio.to_thread(merge.policies, _named(answers), request)
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
        self, request: admin.GetEffectivePolicyRequest, context: Context
    ) -> admin.EffectivePolicy:
        """Return the answer of the agent that has the engine."""
        answers = await self._ask("GetEffectivePolicy", request, context)
        name, answer = _named(answers)[0]
        found: admin.EffectivePolicy = answer
        qualify(found.key, name)
        return found

    async def ListSuspects(  # noqa: N802
        self, request: admin.ListSuspectsRequest, context: Context
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
        late = await asyncio.to_thread(suspects.halves, _named(everywhere))
        readers: list[tuple[str, Any]] = []
        if late:
            asked = admin.ListSuspectsRequest()
            asked.CopyFrom(request)
            asked.limit = suspects.MAX_LATE_IDS
            asked.late_request_ids.extend(dict.fromkeys(half.peer_request_id for half in late))
            readers = _named(await self._ask("ListSuspects", asked, context))
        answers = [_named(own), readers, *([] if everywhere is own else [_named(everywhere)])]

        def join() -> admin.ListSuspectsResponse:
            for named in answers:
                suspects.qualify_suspects(named)
            return suspects.joined(_named(own), late, readers, request)

        return await asyncio.to_thread(join)

    async def Diagnose(  # noqa: N802
        self, request: admin.DiagnoseRequest, context: Context
    ) -> admin.Diagnosis:
        """Return one diagnosis of all agents, which says whose is missing."""
        if request.HasField("at"):
            answers = await self._ask("Diagnose", request, context)
            missing = [(agent.place.name, reason) for agent, reason in answers.missing]
            return await asyncio.to_thread(merge.past_diagnosis, _named(answers), request, missing)
        pairs, answers = await asyncio.gather(
            self._fleet.ask("ListPairs", admin.ListPairsRequest(), context.time_remaining()),
            self._ask("Diagnose", request, context),
        )
        missing = [(agent.place.name, reason) for agent, reason in answers.missing]
        named = _named(answers)

        def merged() -> admin.Diagnosis:
            between = causes_between_agents(_named(pairs), named, request, time.time_ns())
            return merge.diagnosis(named, request, missing, between)

        return await asyncio.to_thread(merged)

    async def GetTrace(self, request: admin.GetTraceRequest, context: Context) -> admin.Trace:  # noqa: N802
        """Return the spans of all sides of a request."""
        sides = await self._sides("GetTrace", request, context)
        return await asyncio.to_thread(merge.trace, sides)

    async def Explain(  # noqa: N802
        self, request: admin.GetTraceRequest, context: Context
    ) -> admin.Explanation:
        """Return what all sides say about a request."""
        sides = await self._sides("Explain", request, context)
        agents = {agent.place.name: agent for agent in self._fleet.agents()}

        def clock(name: str) -> tuple[float, float]:
            agent = agents.get(name)
            return (0.0, 0.0) if agent is None else (agent.clock_offset, agent.round_trip / 2)

        return await asyncio.to_thread(merge.explanation, sides, clock)

    async def _sides(
        self, method: str, request: admin.GetTraceRequest, context: Context
    ) -> list[tuple[str, Any]]:
        """Ask for a request, and then by its trace for the sides that know it by another id."""
        answers = await self._ask(method, request, context)
        named = _named(answers)
        known = {name for name, _ in named}
        traces = {response.trace_id for _, response in named if response.trace_id}
        if len(traces) == 1 and answers.refused:
            by_trace = admin.GetTraceRequest(request_id=traces.pop())
            others = await self._fleet.ask(
                method,
                lambda agent: None if agent.place.name in known else by_trace,
                context.time_remaining(),
            )
            named += _named(others)
        return named

    async def WatchRollout(  # noqa: N802
        self, request: admin.WatchRolloutRequest, _context: Context
    ) -> AsyncIterator[admin.Rollout]:
        """Stream the progress of all agents: of a write to the source, or what it is now."""
        # Each agent counts its own generations.
        request.store_generation = 0
        async for progress in follow_deliveries(self._fleet, "WatchRollout", request):
            yield progress

    async def SetPaused(  # noqa: N802
        self, request: admin.SetPausedRequest, context: Context
    ) -> AsyncIterator[admin.Rollout]:
        """Pause or resume the engines of all agents, and stream the progress."""
        request.author = _author(request.author)
        reached = False
        async for progress in follow_deliveries(self._fleet, "SetPaused", request):
            reached = True
            yield progress
        if not reached:
            await self._abort_without_engines(context, request)

    async def SetPolicyRollout(  # noqa: N802
        self, request: admin.SetPolicyRolloutRequest, context: Context
    ) -> admin.PolicyRollout:
        """Order something about a roll-out of the source's policies."""
        if self._leader is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this relay leads no roll-outs; start it with the --policy-source that the agents follow, or start the "
                "roll-out at the agent that has the policy, by its own address",
            )
        try:
            return await self._leader.set(request)
        except PenstockError as error:
            await abort_with(context, error)

    async def ListPolicyRollouts(  # noqa: N802
        self, request: admin.ListPolicyRolloutsRequest, context: Context
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
        own = await asyncio.to_thread(merge.rollouts, _named(answers), request)
        names = {each.name for each in led}
        led += [each for each in own.rollouts if each.name not in names]
        return admin.ListPolicyRolloutsResponse(rollouts=led)

    async def WatchEvents(  # noqa: N802
        self, request: admin.ListEventsRequest, context: Context
    ) -> AsyncIterator[admin.LoggedEvent]:
        """Follow the logs of all agents until the caller ends."""
        if request.HasField("after_batch"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "a relay follows several logs: give after_agents instead of after_batch; upgrade agentctl",
            )
        if self._watching >= MAX_WATCHES:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHES} callers watch at this relay; end one, or watch one agent by its own address",
            )
        self._watching += 1
        try:
            async with aclosing(EventStream(self._fleet, request).events()) as events:
                async for event in events:
                    yield event
        finally:
            self._watching -= 1

    async def GetBundle(  # noqa: N802
        self, request: admin.GetBundleRequest, context: Context
    ) -> AsyncIterator[admin.BundlePart]:
        """Pass on the bundle of the agent that the request names, or of the only one."""
        agents = {agent.place.name: agent for agent in self._fleet.agents()}
        agent = (
            agents.get(request.agent) if request.agent or len(agents) != 1 else next(iter(agents.values()))
        )
        if agent is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, which_agent(request.agent, agents))
        request.agent = ""
        try:
            async with aclosing(agent.stream("GetBundle", request)) as parts:
                async for part in parts:
                    yield part
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"{agent.place.name}: {agent.sentence(error)}")
        except ContractError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"{agent.place.name}: {error}")

    async def SetQuarantine(  # noqa: N802
        self, request: admin.SetQuarantineRequest, context: Context
    ) -> admin.Quarantine:
        """Order it at all agents; return the order of one."""
        request.author = _author(request.author)
        name, answer = _named(await self._ask("SetQuarantine", request, context))[0]
        found: admin.Quarantine = answer
        if found.HasField("key"):
            qualify(found.key, name)
        return found

    async def StartDrill(self, request: admin.StartDrillRequest, context: Context) -> admin.Drill:  # noqa: N802
        """Start it at all agents that have such an engine; the id names all of them."""
        request.author = _author(request.author)
        return await self._drill("StartDrill", lambda agent: for_agent(request, agent.place.name), context)

    async def StopDrill(self, request: admin.StopDrillRequest, context: Context) -> admin.Drill:  # noqa: N802
        """Stop it at the agents that the id names."""
        ids = dict(part.split("/", 1) for part in request.id.split(",") if "/" in part)
        author = _author(request.author)

        def own(agent: AgentConnection) -> admin.StopDrillRequest | None:
            found = ids.get(agent.place.name)
            return None if found is None else admin.StopDrillRequest(id=found, author=author)

        return await self._drill("StopDrill", own, context)

    async def _drill(
        self, method: str, own: Callable[[AgentConnection], Any], context: Context
    ) -> admin.Drill:
        answers = await self._fleet.ask(method, own, context.time_remaining())
        await self._check(answers, context)
        named = _named(answers)
        for name, drill in named:
            merge.name_drill(drill, name)
        whole: admin.Drill = named[0][1]
        for _, drill in named[1:]:
            whole.id += f",{drill.id}"
            whole.engines.extend(drill.engines)
        return whole

    async def IssuePageToken(  # noqa: N802
        self, request: admin.IssuePageTokenRequest, context: Context
    ) -> admin.IssuePageTokenResponse:
        """Return the address of the relay's own page and a token for the caller; no agent is asked."""
        try:
            return self._page.issue(request)
        except PenstockError as error:
            await abort_with(context, error)

    async def GetStacks(  # noqa: N802
        self, request: admin.GetStacksRequest, context: Context
    ) -> admin.EngineStacks:
        """Return the answer of the agent that has the engine."""
        request.author = _author(request.author)
        name, answer = _named(await self._ask("GetStacks", request, context))[0]
        found: admin.EngineStacks = answer
        qualify(found.key, name)
        return found

    async def Forget(self, request: admin.ForgetRequest, context: Context) -> admin.ForgetResponse:  # noqa: N802
        """Forget an engine, or a peer at all agents."""
        request.author = _author(request.author)
        merged = admin.ForgetResponse()
        for name, answer in _named(await self._ask("Forget", request, context)):
            qualify_all(answer.engines, name)
            merged.engines.extend(answer.engines)
        return merged

    async def _ask(self, method: str, request: Any, context: Context) -> Answers:
        answers = await self._fleet.ask(
            method, lambda agent: for_agent(request, agent.place.name), context.time_remaining()
        )
        await self._check(answers, context, request)
        return answers

    async def _check(self, answers: Answers, context: Context, request: Any = None) -> None:
        """Name the agents without an answer; abort if none answered, or the request is wrong."""
        if answers.missing:
            context.set_trailing_metadata(((COVERAGE, answers.coverage().SerializeToString()),))
        wrong = [each.error for each in answers.refused if each.error.code() in _WRONG_REQUEST]
        if wrong and not answers.found:
            await context.abort(wrong[0].code(), _details(wrong[0]))
        if answers.found:
            return
        if answers.refused:
            error = answers.refused[0].error
            await context.abort(error.code(), _details(error))
        if answers.missing:
            if any(reason == FULL for _, reason in answers.missing):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, FULL)
            reasons = "; ".join(f"{agent.place.name}: {reason}" for agent, reason in answers.missing[:_NAMED])
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"none of {len(answers.missing)} agents answered ({reasons}); 'agentctl doctor' names all",
            )
        await self._abort_without_engines(context, request)

    async def _abort_without_engines(self, context: Context, request: Any) -> None:
        if not self._fleet.agents():
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this relay has no agents; see --agents of penstock-relay",
            )
        await context.abort(
            grpc.StatusCode.NOT_FOUND,
            f"no agent of this relay has {engines_of(request) or 'such an engine'}; "
            "'agentctl get engines' lists them as AGENT/ENGINE",
        )


def _named(answers: Answers) -> list[tuple[str, Any]]:
    return [(answer.agent.place.name, answer.response) for answer in answers.found]


def _details(error: grpc.aio.AioRpcError) -> str:
    return in_one_line(error.details() or "", _MAX_DETAILS)


def _author(author: str) -> str:
    """Return the author for the agents' audit logs: names that begin with "tls:" are theirs to give."""
    return f"relay: {author}" if author else "relay"


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
