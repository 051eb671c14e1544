"""How a relay asks agents: what of a request for all it asks one, and who did not answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.errors import in_one_line
from penstock.agent.relay.ejections import EjectionBoard
from penstock.agent.relay.fleet import FULL
from penstock.agent.relay.merged_answers import own_key, own_selector
from penstock.agent.relay.merged_peers import FleetAddresses
from penstock.agent.server.page_tokens import PageTokens
from penstock.agent.views.coverage import COVERAGE
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.relay.fleet import Answers, Fleet
    from penstock.agent.relay.fleet_leader import FleetLeader
    from penstock.agent.relay.policies import FleetPolicies
    from penstock.agent.server.status_codes import Call

_NAMED = 3
# Characters of an agent's own sentence.
_MAX_DETAILS = 500
# What a caller may have to give otherwise: any agent's word is as good as another's.
_WRONG_REQUEST = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)


_NAMED_ENGINES = 5
_LISTED_AGENTS = 20
# Which field names one engine.
_KEYS: dict[type[Any], str] = {
    admin.GetEffectivePolicyRequest: "key",
    admin.GetStacksRequest: "key",
    admin.ForgetRequest: "engine",
}


class AskingService(admin_pb2_grpc.AdminServicer):
    """What the calls of a relay share: its agents, and how they are asked."""

    def __init__(
        self,
        fleet: Fleet,
        policies: FleetPolicies | None = None,
        leader: FleetLeader | None = None,
        page: PageTokens | None = None,
        ejections: EjectionBoard | None = None,
    ) -> None:
        """Serve the agents of *fleet*; policies are written to *policies* and led by *leader*, None refuses that.

        *page* makes the tokens of the relay's own page; *ejections* has what is made of servers.
        """
        self._ejections = EjectionBoard() if ejections is None else ejections
        self._page = PageTokens() if page is None else page
        self._fleet = fleet
        self._addresses = FleetAddresses(fleet)
        self._leader = leader
        self._policies = policies
        self._start_time = time.time_ns()
        self._watching = 0

    async def _ask(self, method: str, request: Any, context: Call) -> Answers:
        answers = await self._fleet.ask(
            method, lambda agent: for_agent(request, agent.place.name), context.time_remaining()
        )
        await self._check(answers, context, request)
        return answers

    async def _check(self, answers: Answers, context: Call, request: Any = None) -> None:
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

    async def _abort_without_engines(self, context: Call, request: Any) -> None:
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


def named_answers(answers: Answers) -> list[tuple[str, Any]]:
    """Return the answers with the names of their agents."""
    return [(answer.agent.place.name, answer.response) for answer in answers.found]


def author_at_agents(author: str) -> str:
    """Return the author for the agents' audit logs: names that begin with "tls:" are theirs to give."""
    return f"relay: {author}" if author else "relay"


def _details(error: grpc.aio.AioRpcError) -> str:
    return in_one_line(error.details() or "", _MAX_DETAILS)


def for_agent(request: Any, agent: str) -> Any:
    """Return *request* with the engines' own names; None if it names only engines of other agents."""
    selector = getattr(request, "selector", None)
    if selector is not None and selector.engines:
        own = own_selector(selector, agent)
        return None if own is None else _with(request, "selector", own)
    field = _KEYS.get(type(request))
    if field is not None and request.HasField(field):
        key = own_key(getattr(request, field), agent)
        return None if key is None else _with(request, field, key)
    return request


def engines_of(request: Any) -> str:
    """Return the engines that a request names; empty for none."""
    keys = list(request.selector.engines) if hasattr(request, "selector") else []
    field = _KEYS.get(type(request))
    if field is not None and request.HasField(field):
        keys.append(getattr(request, field))
    more = f" and {len(keys) - _NAMED_ENGINES} more" if len(keys) > _NAMED_ENGINES else ""
    return ", ".join(f"{key.server}/{key.engine}".lstrip("/") for key in keys[:_NAMED_ENGINES]) + more


def which_agent(asked: str, known: Iterable[str]) -> str:
    """Return a sentence about a call that needs one agent, for a name that is empty or not *known*."""
    names = sorted(known)
    more = (
        f" and {len(names) - _LISTED_AGENTS} more; 'agentctl doctor' names all"
        if len(names) > _LISTED_AGENTS
        else ""
    )
    listed = (", ".join(names[:_LISTED_AGENTS]) or "none") + more
    if asked:
        return f"this relay has no agent {asked!r}; it has {listed}"
    return f"a bundle is of one agent; name it with --agent: {listed}"


def _with(request: Any, field: str, value: Any) -> Any:
    changed = type(request)()
    changed.CopyFrom(request)
    getattr(changed, field).CopyFrom(value)
    return changed
