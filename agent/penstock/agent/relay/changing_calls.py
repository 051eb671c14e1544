"""The calls of a relay that change something: policies at their source, all else at all agents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.errors import PenstockError
from penstock.agent.relay import merged_answers
from penstock.agent.relay.asking import AskingService, author_at_agents, for_agent, named_answers
from penstock.agent.relay.merged_answers import qualify, qualify_all
from penstock.agent.relay.policies import (
    affected,
    apply_policy,
    delete_policy,
    export_policies,
)
from penstock.agent.server.status_codes import Call, abort_with
from penstock.agent.views.coverage import COVERAGE
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.agent.relay.connection import AgentConnection
    from penstock.agent.relay.policies import FleetPolicies

_NO_SOURCE = (
    "this relay writes no policies: pods that start later would not have them; start it with the --policy-source that "
    "the agents follow, write them there, or write to one agent by its own address"
)


def _written(
    call: Callable[[FleetPolicies, Any], Awaitable[Any]],
) -> Callable[[ChangingCalls, Any, Call], Awaitable[Any]]:
    async def write(self: ChangingCalls, request: Any, context: Call) -> Any:
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
                lambda: affected(merged_answers.engines(named_answers(known), engines).engines, request)
            )
            response.engines.extend(admin.EngineChange(key=key) for key in keys)
            if known.missing:
                context.set_trailing_metadata(((COVERAGE, known.coverage().SerializeToString()),))
        return response

    return write


def _refused(sentence: str) -> Callable[[ChangingCalls, Any, Call], Awaitable[Any]]:
    async def call(_self: ChangingCalls, _request: Any, context: Call) -> Any:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)

    return call


class ChangingCalls(AskingService):
    """The methods of ``penstock.v1.Admin`` that change something, except streams."""

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

    async def SetPolicyRollout(  # noqa: N802
        self, request: admin.SetPolicyRolloutRequest, context: Call
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

    async def SetQuarantine(  # noqa: N802
        self, request: admin.SetQuarantineRequest, context: Call
    ) -> admin.Quarantine:
        """Order it at all agents; return the order of one."""
        request.author = author_at_agents(request.author)
        name, answer = named_answers(await self._ask("SetQuarantine", request, context))[0]
        found: admin.Quarantine = answer
        if found.HasField("key"):
            qualify(found.key, name)
        return found

    async def SetEjection(  # noqa: N802
        self, request: admin.SetEjectionRequest, context: Call
    ) -> admin.SetEjectionResponse:
        """Order it at the agents that have such an engine."""
        request.author = author_at_agents(request.author)
        merged = admin.SetEjectionResponse()
        for name, answer in named_answers(await self._ask("SetEjection", request, context)):
            for key in answer.engines:
                qualify(key, name)
                merged.engines.append(key)
        return merged

    async def StartDrill(self, request: admin.StartDrillRequest, context: Call) -> admin.Drill:  # noqa: N802
        """Start it at all agents that have such an engine; the id names all of them."""
        request.author = author_at_agents(request.author)
        return await self._drill("StartDrill", lambda agent: for_agent(request, agent.place.name), context)

    async def StopDrill(self, request: admin.StopDrillRequest, context: Call) -> admin.Drill:  # noqa: N802
        """Stop it at the agents that the id names."""
        ids = dict(part.split("/", 1) for part in request.id.split(",") if "/" in part)
        author = author_at_agents(request.author)

        def own(agent: AgentConnection) -> admin.StopDrillRequest | None:
            found = ids.get(agent.place.name)
            return None if found is None else admin.StopDrillRequest(id=found, author=author)

        return await self._drill("StopDrill", own, context)

    async def _drill(self, method: str, own: Callable[[AgentConnection], Any], context: Call) -> admin.Drill:
        answers = await self._fleet.ask(method, own, context.time_remaining())
        await self._check(answers, context)
        named = named_answers(answers)
        for name, drill in named:
            merged_answers.name_drill(drill, name)
        whole: admin.Drill = named[0][1]
        for _, drill in named[1:]:
            whole.id += f",{drill.id}"
            whole.engines.extend(drill.engines)
        return whole

    async def IssuePageToken(  # noqa: N802
        self, request: admin.IssuePageTokenRequest, context: Call
    ) -> admin.IssuePageTokenResponse:
        """Return the address of the relay's own page and a token for the caller; no agent is asked."""
        try:
            return self._page.issue(request)
        except PenstockError as error:
            await abort_with(context, error)

    async def Forget(self, request: admin.ForgetRequest, context: Call) -> admin.ForgetResponse:  # noqa: N802
        """Forget an engine, or a peer at all agents."""
        request.author = author_at_agents(request.author)
        merged = admin.ForgetResponse()
        for name, answer in named_answers(await self._ask("Forget", request, context)):
            qualify_all(answer.engines, name)
            merged.engines.extend(answer.engines)
        return merged
