"""Streams of many agents as one: progress as a whole each time, events in the order in which they come."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.aio import is_cancelled
from penstock.agent.errors import ContractError
from penstock.agent.relay import merged_answers
from penstock.agent.relay.asking import for_agent
from penstock.agent.relay.connection import AWAY, CLOSED
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from penstock.agent.relay.connection import AgentConnection
    from penstock.agent.relay.fleet import Fleet

# Of events; each has a stream to each agent.
MAX_WATCHES = 64
# Events that wait for the reader, and their bytes; then the agents' streams wait, by gRPC's own flow control.
_MAX_WAITING = 1_000
_MAX_WAITING_BYTES = 2 << 20
# Between attempts to follow an agent, and between looks for new ones.
_AGAIN_SECONDS = 1.0
_STATUS_SECONDS = 5.0
# Of a request that does not say how long; as at an agent.
_TIMEOUT_SECONDS = 30.0
# An agent that is silent for so long after its time hangs.
_GRACE_SECONDS = 1.0
_NO_INDEX = 1 << 32


async def follow_deliveries(fleet: Fleet, method: str, request: Any) -> AsyncIterator[admin.Rollout]:
    """Yield the progress of all agents until each has ended its own stream.

    Agents that refuse because they have no such engine are left out; those that do not answer are rows.
    """
    # An agent ends its stream by itself at the request's time.
    within = request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else _TIMEOUT_SECONDS
    progress = _Progress(within + _GRACE_SECONDS)
    tasks = [
        asyncio.ensure_future(progress.follow(agent, method, each))
        for agent in fleet.agents()
        if (each := for_agent(request, agent.place.name)) is not None
    ]
    try:
        while True:
            ended = all(task.done() for task in tasks)
            progress.changed.clear()
            if progress.parts or progress.missing:
                merged = progress.merged()
                # An agent that has not said anything yet may have engines.
                merged.done &= ended or len(progress.parts) == len(tasks)
                yield merged
            if ended:
                return
            await progress.changed.wait()
    finally:
        await _end(tasks)


class _Progress:
    """The last word of each agent about one order."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.parts: dict[str, admin.Rollout] = {}
        self.missing: dict[str, str] = {}
        self.changed = asyncio.Event()

    def merged(self) -> admin.Rollout:
        return merged_answers.delivery(sorted(self.parts.items()), missing=sorted(self.missing.items()))

    async def follow(self, agent: AgentConnection, method: str, request: Any) -> None:
        """Follow one agent to the end of its stream."""
        name = agent.place.name
        try:
            if agent.state == AWAY:
                self.missing[name] = agent.error
                return
            async with aclosing(agent.stream(method, request, self.seconds)) as messages:
                async for message in messages:
                    self.parts[name] = message
                    self.changed.set()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self.missing[name] = agent.sentence(error)
        except ContractError as error:
            self.missing[name] = str(error)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if is_cancelled():
                raise
            self.missing[name] = CLOSED
        finally:
            self.changed.set()


class WaitingEvents:
    """Events between agents and one reader, bounded in number and in bytes; the loop's.

    They wait as bytes: a message takes many times as much memory as it has bytes.
    """

    def __init__(self, most: int = _MAX_WAITING, most_bytes: int = _MAX_WAITING_BYTES) -> None:
        """Begin without events; an event of more than *most_bytes* waits alone."""
        self._most = most
        self._most_bytes = most_bytes
        self._bodies: deque[bytes] = deque()
        self._changed = asyncio.Condition()
        self.size = 0

    async def put(self, event: admin.LoggedEvent) -> None:
        """Add *event* when there is room."""
        body = event.SerializeToString()
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(len(body)))
            self._bodies.append(body)
            self.size += len(body)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        if not self._bodies:
            return True
        return len(self._bodies) < self._most and self.size + size <= self._most_bytes

    async def get(self) -> admin.LoggedEvent:
        """Remove and return the oldest event, as soon as there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._bodies))
            body = self._bodies.popleft()
            self.size -= len(body)
            self._changed.notify_all()
        return admin.LoggedEvent.FromString(body)


class EventStream:
    """The new events of all agents, for one reader; a slow one slows the agents' streams."""

    def __init__(self, fleet: Fleet, request: admin.ListEventsRequest) -> None:
        """Follow from the positions of *request*; agents without one from now, or from its ``since``."""
        self._fleet = fleet
        self._request = request
        self._positions = {each.agent: (each.batch, _NO_INDEX) for each in request.after_agents}
        # When each agent was last heard, seconds since the epoch.
        self._heard: dict[str, float] = {}
        self._waiting = WaitingEvents()
        self._tasks: dict[str, tuple[AgentConnection, asyncio.Task[None]]] = {}

    async def events(self) -> AsyncGenerator[admin.LoggedEvent, None]:
        """Yield events until the reader ends."""
        finding = asyncio.ensure_future(self._find())
        try:
            while True:
                yield await self._waiting.get()
        finally:
            await _end([finding, *(task for _, task in self._tasks.values())])

    async def _find(self) -> None:
        """Follow each agent that there is, also those that come later, or to another address."""
        while True:
            agents = {agent.place.name: agent for agent in self._fleet.agents()}
            for name, (agent, task) in [*self._tasks.items()]:
                if agents.get(name) is not agent:
                    del self._tasks[name]
                    task.cancel()
                    # Another pod of this name has a log of its own.
                    self._positions.pop(name, None)
            for name, agent in agents.items():
                if self._asked(name) is not None and name not in self._tasks:
                    self._tasks[name] = (agent, asyncio.ensure_future(self._follow(agent)))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _follow(self, agent: AgentConnection) -> None:
        while True:
            if agent.state != AWAY:
                try:
                    await self._locate(agent)
                    await self._read(agent)
                except (grpc.aio.AioRpcError, ContractError):
                    # The next attempt begins where this one ended; what cannot be used is in the relay's log.
                    pass
                except (asyncio.CancelledError, grpc.aio.UsageError):
                    if is_cancelled():
                        raise
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _locate(self, agent: AgentConnection) -> None:
        """Begin at the end of the agent's log, or at its beginning if it was replaced."""
        name = agent.place.name
        known = self._positions.get(name)
        if known is None and (name in self._heard or self._request.HasField("since")):
            return
        last = (await agent.call("GetStatus", admin.GetStatusRequest(), _STATUS_SECONDS)).log_last
        if known is None:
            self._positions[name] = (last, _NO_INDEX)
            self._heard[name] = time.time()
        elif last < known[0]:
            self._positions[name] = (0, 0)

    async def _read(self, agent: AgentConnection) -> None:
        """Read the stream of an agent to its end."""
        name = agent.place.name
        asked = self._asked(name)
        if asked is None:
            return
        async with aclosing(agent.stream("WatchEvents", asked)) as events:
            async for event in events:
                position = (event.batch, event.index)
                if asked.HasField("after_batch") and position <= self._positions[name]:
                    continue
                self._positions[name] = max(self._positions.get(name, position), position)
                self._heard[name] = time.time()
                merged_answers.name_event(event, name)
                await self._waiting.put(event)

    def _asked(self, name: str) -> admin.ListEventsRequest | None:
        asked = for_agent(self._request, name)
        if asked is None:
            return None
        own = admin.ListEventsRequest()
        own.CopyFrom(asked)
        own.ClearField("after_agents")
        own.ClearField("after_batch")
        if name in self._positions:
            # The last batch may not have been read to its end.
            own.after_batch = max(self._positions[name][0] - 1, 0)
        elif name in self._heard:
            own.since.FromNanoseconds(max(int((time.time() - self._heard[name]) * 1e9), 1))
            own.limit = _MAX_WAITING
        return own


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task
