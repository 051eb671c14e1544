"""All agents of a relay: found, connected, and asked together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from penstock.agent.aio import is_cancelled
from penstock.agent.errors import ContractError
from penstock.agent.relay.connection import AWAY, CLOSED, AgentConnection
from penstock.agent.relay.large_answers import LargeAnswers, Room, weight
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from google.protobuf.message import Message
    from penstock.agent.relay.config import AgentTls
    from penstock.agent.relay.discovery import AgentFinder

    _Take = Callable[[int], bool]

# Between looks where the agents are.
_LOOK_SECONDS = 5.0
# Calls to agents at a time, over all callers; as many again of those that take long.
_MAX_CALLS = 256
# Questions of callers at a time; the others wait for their turn. Those that take long have turns of their own: lists,
# orders and the leader of roll-outs do not wait behind them.
_MAX_QUESTIONS, _MAX_SLOW_QUESTIONS = 4, 4
# Of the answers to one question together.
_MAX_BYTES = 64 << 20
# Of those that do not answer as many are named.
_MAX_MISSING = 10
# For a list, the last few agents have so long; an order waits for each agent's deadline.
_LIST_SECONDS = 0.8
_FEW = 0.1
# Of calls that an agent may take longer for: to read its log in turn, to replay it, or to ask an engine. Seconds.
_SLOW = {"Diagnose": 12.0, "WhatIf": 20.0, "GetBill": 20.0, "GetStacks": 8.0, "ListSuspects": 10.0}
# Part of a caller's deadline that is left for the answer.
_RESERVE_SECONDS = 0.5
FULL = "the relay has more answers to read than it may keep; try again"
"""Why an agent's answer is missing that has come amid too many others."""
_TOO_MANY_BYTES = "the answers of all are too large together; narrow the request"
# The agent has understood, and has none of what is asked for, or the request is wrong.
_REFUSALS = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)


class Answer(NamedTuple):
    """What one agent answered; *size*: bytes on the wire."""

    agent: AgentConnection
    response: Any
    size: int


class _Body(NamedTuple):
    """What one agent answered, before it is read."""

    agent: AgentConnection
    body: bytes


class Refusal(NamedTuple):
    """An agent that answered with an error."""

    agent: AgentConnection
    error: grpc.aio.AioRpcError


_Missing = tuple["AgentConnection", str]


class Answers(NamedTuple):
    """What all agents answered, in the order of their names.

    Attributes:
        found: answers.
        refused: agents that have none of what is asked for; all of them, where the request is wrong.
        missing: agents that did not answer, and why.

    """

    found: tuple[Answer, ...]
    refused: tuple[Refusal, ...]
    missing: tuple[tuple[AgentConnection, str], ...]

    def coverage(self) -> admin.RelayCoverage:
        """Return how many agents were asked and answered, and the names of the others with the reason."""
        answered = len(self.found) + len(self.refused)
        return admin.RelayCoverage(
            asked=answered + len(self.missing),
            answered=answered,
            missing=[
                admin.MissingAgent(name=agent.place.name, reason=reason)
                for agent, reason in self.missing[:_MAX_MISSING]
            ],
        )


class Fleet:
    """The agents; the loop's.

    Attributes:
        large: what of their answers is in memory.

    """

    def __init__(self, finder: AgentFinder, tls: AgentTls | None, deadline: float) -> None:
        """Prepare connections to the agents that *finder* finds.

        Args:
            finder: of the agents.
            tls: of agents over TCP.
            deadline: of one agent's answer, seconds.

        """
        self._finder = finder
        self._tls = tls
        self._deadline = deadline
        self.large = LargeAnswers()
        # By whether the method takes long.
        self._questions = {
            False: asyncio.Semaphore(_MAX_QUESTIONS),
            True: asyncio.Semaphore(_MAX_SLOW_QUESTIONS),
        }
        self._calls = {slow: asyncio.Semaphore(_MAX_CALLS) for slow in (False, True)}
        self._connections: dict[str, tuple[AgentConnection, asyncio.Task[None]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def agents(self) -> list[AgentConnection]:
        """Return the agents by name."""
        return [self._connections[name][0] for name in sorted(self._connections)]

    def trouble(self) -> str:
        """Return a sentence about agents that are away, or cannot be found; empty without any."""
        away = [agent.place.name for agent in self.agents() if agent.state == AWAY]
        if not away:
            return self._finder.error
        named = ", ".join(away[:_MAX_MISSING])
        more = f"; {self._finder.error}" if self._finder.error else ""
        return f"{len(away)} of {len(self._connections)} agents are away: {named}{more}"

    async def run(self) -> None:
        """Follow where the agents are, until cancelled."""
        self._keep()
        while self._finder.changes:
            await self._finder.look_up()
            self._keep()
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.Event().wait()

    def _keep(self) -> None:
        """Connect to the agents that there are; one whose address is another now is connected anew."""
        wanted = self._finder.places
        for name, (connection, task) in [*self._connections.items()]:
            if wanted.get(name) != connection.place:
                del self._connections[name]
                task.cancel()
                closing = asyncio.ensure_future(connection.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        for name in sorted(wanted.keys() - self._connections.keys()):
            connection = AgentConnection(wanted[name], self._tls, self._deadline)
            self._connections[name] = (connection, asyncio.ensure_future(connection.run()))

    async def policies(self) -> tuple[dict[str, admin.ListPoliciesResponse], list[str]]:
        """Return the policies of each agent that answers, and the names of the others."""
        answers = await self.ask("ListPolicies", admin.ListPoliciesRequest())
        others = [each.agent for each in answers.refused] + [agent for agent, _ in answers.missing]
        found = {each.agent.place.name: each.response for each in answers.found}
        return found, [agent.place.name for agent in others]

    async def engines(self) -> tuple[list[str], dict[str, list[admin.Engine]]]:
        """Return the names of all agents, and the engines of those that answer, with their own keys."""
        answers = await self.ask("ListEngines", admin.ListEnginesRequest())
        found = {each.agent.place.name: list(each.response.engines) for each in answers.found}
        return [agent.place.name for agent in self.agents()], found

    async def statuses(self) -> dict[str, admin.AgentStatus]:
        """Return the status of each agent that answers."""
        answers = await self.ask("GetStatus", admin.GetStatusRequest())
        return {each.agent.place.name: each.response for each in answers.found}

    async def ask(
        self,
        method: str,
        request: Message | Callable[[AgentConnection], Message | None],
        remaining: float | None = None,
    ) -> Answers:
        """Ask all agents at once; those that take long by nature have longer, and are waited for.

        Args:
            method: of the admin service.
            request: for all; or what to ask each, None to leave one out.
            remaining: seconds that the caller waits.

        """
        timeout = max(self._deadline, _SLOW.get(method, 0.0))
        if remaining is not None:
            timeout = max(min(timeout, remaining - _RESERVE_SECONDS), 0.1)
        asked = []
        for agent in self.agents():
            each = request(agent) if callable(request) else request
            if each is not None:
                asked.append((agent, each))
        # What has come counts until it is read, or until whoever asks has left.
        with self.large.waiting.share() as keep:
            return await self._read(method, await self._heard(method, asked, timeout, keep))

    async def _heard(
        self, method: str, asked: Sequence[tuple[AgentConnection, Message]], seconds: float, keep: _Take
    ) -> list[_Body | Refusal | _Missing]:
        """Return what agents say to *method*, in the order of *asked*; *keep* makes room for it."""
        room = Room(_MAX_BYTES)
        async with self._questions[takes_long(method)]:
            calls = [
                asyncio.ensure_future(self._one(agent, method, each, seconds, room, keep))
                for agent, each in asked
            ]
            try:
                if method.startswith("List") and not takes_long(method) and calls:
                    await most(calls)
                else:
                    await asyncio.gather(*calls)
                return [
                    call.result() if call.done() else (agent, agent.doubt(_LIST_SECONDS))
                    for (agent, _), call in zip(asked, calls, strict=True)
                ]
            finally:
                for call in calls:
                    call.cancel()

    async def _one(
        self, agent: AgentConnection, method: str, request: Message, seconds: float, room: Room, keep: _Take
    ) -> _Body | Refusal | _Missing:
        if agent.state == AWAY:
            # Its own task looks whether it is back; calls do not wait for it.
            return agent, agent.error
        try:
            async with self._calls[takes_long(method)]:
                body = await agent.ask(method, request, seconds, slow=takes_long(method))
        except grpc.aio.AioRpcError as error:
            refuses = error.code() in _REFUSALS
            return Refusal(agent, error) if refuses else (agent, agent.sentence(error, seconds))
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # A channel that is closed under a call cancels it.
            if is_cancelled():
                raise
            return agent, CLOSED
        if not room.take(len(body)):
            return agent, _TOO_MANY_BYTES
        return _Body(agent, body) if keep(len(body)) else (agent, FULL)

    async def _read(self, method: str, heard: list[_Body | Refusal | _Missing]) -> Answers:
        """Read what agents have said, when it is this question's turn; *heard* becomes empty."""
        size = sum(weight(len(each.body)) for each in heard if isinstance(each, _Body))
        results: list[Answer | Refusal | _Missing] = []
        heard.reverse()
        async with self.large.reading(size):
            while heard:
                each = heard.pop()
                if not isinstance(each, _Body):
                    results.append(each)
                    continue
                try:
                    response = await each.agent.read(method, each.body)
                    results.append(Answer(each.agent, response, len(each.body)))
                except ContractError as error:
                    results.append((each.agent, str(error)))
        return _sorted(results)

    async def close(self) -> None:
        """End the connections."""
        tasks = [task for _, task in self._connections.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection, _ in self._connections.values()))


async def most(calls: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for all *calls*; no longer than a list may take, if only a few have not ended then."""
    _, others = await asyncio.wait(calls, timeout=_LIST_SECONDS)
    if len(others) > _FEW * len(calls):
        await asyncio.wait(others)


def takes_long(method: str) -> bool:
    """Whether an agent may take longer for *method* than for others."""
    return method in _SLOW


def _sorted(results: Iterable[Answer | Refusal | _Missing]) -> Answers:
    """Sort *results* into answers, refusals and agents without an answer."""
    found: list[Answer] = []
    refused: list[Refusal] = []
    missing: list[_Missing] = []
    for each in results:
        if isinstance(each, Refusal):
            refused.append(each)
        elif isinstance(each, Answer):
            found.append(each)
        else:
            missing.append(each)
    if found:
        # What another agent can answer is not wrong: this one is of another version.
        other = [each for each in refused if each.error.code() is grpc.StatusCode.INVALID_ARGUMENT]
        missing += [(each.agent, each.agent.sentence(each.error)) for each in other]
        refused = [each for each in refused if each not in other]
    return Answers(tuple(found), tuple(refused), tuple(missing))
