"""A few slow agents of many: a list does without them, an order waits for them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.relay.connection import UP
from penstock.agent.relay.discovery import AgentFinder, AgentPlace, AgentSet
from penstock.agent.relay.fleet import Fleet, most
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import admin_pb2_grpc

from tests.support.agent.agent import short_directory
from tests.support.policy.feed import DEADLINE, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import pytest


class _Agent(admin_pb2_grpc.AdminServicer):
    """Answers the relay's looks at once, and the rest when it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = asyncio.Event()

    async def GetStatus(self, _request: Any, _context: Any) -> admin.AgentStatus:  # noqa: N802
        return admin.AgentStatus()

    async def ListEngines(self, _request: Any, _context: Any) -> admin.ListEnginesResponse:  # noqa: N802
        await self._turn()
        return admin.ListEnginesResponse()

    async def SetQuarantine(self, _request: Any, _context: Any) -> admin.Quarantine:  # noqa: N802
        await self._turn()
        return admin.Quarantine()

    async def Diagnose(self, _request: Any, _context: Any) -> admin.Diagnosis:  # noqa: N802
        await self._turn()
        return admin.Diagnosis()

    async def _turn(self) -> None:
        self.asked.set()
        await self.may.wait()


@asynccontextmanager
async def _fleet(count: int) -> AsyncIterator[tuple[Fleet, _Agent]]:
    """Run so many agents, all but the last at once with their answers; also return the last."""
    async with AsyncExitStack() as parts:
        directory = parts.enter_context(short_directory())
        agents, places = [], []
        for number in range(count):
            server = grpc.aio.server()
            agents.append(_Agent())
            admin_pb2_grpc.add_AdminServicer_to_server(agents[-1], server)
            places.append(AgentPlace(f"a{number:02d}", f"unix://{directory}/{number}.sock"))
            server.add_insecure_port(places[-1].address)
            await server.start()
            parts.push_async_callback(server.stop, None)
        for agent in agents[:-1]:
            agent.may.set()
        fleet = Fleet(AgentFinder(AgentSet(tuple(places))), None, DEADLINE)
        parts.push_async_callback(fleet.close)
        following = asyncio.ensure_future(fleet.run())
        parts.callback(following.cancel)
        await eventually(lambda: [each.state for each in fleet.agents()] == [UP] * count, "all are up")
        yield fleet, agents[-1]


async def test_how_many_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth is; for more it waits until all have answered."""
    monkeypatch.setattr("penstock.agent.relay.fleet._LIST_SECONDS", 0.01)
    may = asyncio.Event()
    slow = [asyncio.ensure_future(may.wait()) for _ in range(3)]
    done: list[asyncio.Task[Any]] = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(18)]
    await asyncio.gather(*done)
    await most([*done, *slow[:2]])
    waiting = asyncio.ensure_future(most([*done, *slow]))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    may.set()
    await waiting


async def test_a_list_does_without_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer is named; it is asked again as soon as it answers the relay's own look."""
    async with _fleet(11) as (fleet, slow):

        async def others_first(calls: Sequence[asyncio.Task[Any]]) -> None:
            # On a loaded machine others are slow, too.
            await eventually(
                lambda: slow.asked.is_set() and sum(call.done() for call in calls) >= 10,
                "the others have answered",
            )
            await most(calls)

        monkeypatch.setattr("penstock.agent.relay.fleet.most", others_first)
        answers = await fleet.ask("ListEngines", admin.ListEnginesRequest())
        assert slow.asked.is_set()
        assert len(answers.found) >= 1
        slow_reasons = [reason for agent, reason in answers.missing if agent.place.name == "a10"]
        assert slow_reasons == ["no answer in 0.8 s"]
        slow.may.set()
        await eventually(lambda: [each.state for each in fleet.agents()] == [UP] * 11, "all are up again")
        monkeypatch.setattr("penstock.agent.relay.fleet._LIST_SECONDS", DEADLINE)
        assert not (await fleet.ask("ListEngines", admin.ListEnginesRequest())).missing


async def test_what_waits_for_all() -> None:
    """A list of few agents, and an order to many."""
    for count, method, request in (
        (3, "ListEngines", admin.ListEnginesRequest()),
        (11, "SetQuarantine", admin.SetQuarantineRequest()),
    ):
        async with _fleet(count) as (fleet, slow):
            asking = asyncio.ensure_future(fleet.ask(method, request))
            await slow.asked.wait()
            # Longer than a list does without a few.
            await asyncio.sleep(1.0)
            assert not asking.done()
            slow.may.set()
            answers = await asking
            assert (len(answers.found), answers.missing) == (count, ())


async def test_a_call_that_takes_long_by_nature(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has longer than the deadline; an agent that does not make it stays there for others."""
    monkeypatch.setattr("penstock.agent.relay.fleet._SLOW", {"Diagnose": 0.5})
    async with _fleet(2) as (fleet, slow):
        monkeypatch.setattr(fleet, "_deadline", 0.1)
        answers = await fleet.ask("Diagnose", admin.DiagnoseRequest())
        # On a loaded machine the other is slow, too.
        slow_reasons = [reason for agent, reason in answers.missing if agent.place.name == "a01"]
        assert slow_reasons == ["no answer in 0.5 s"]
        assert [each.state for each in fleet.agents()] == [UP] * 2
        slow.may.set()
        monkeypatch.setattr("penstock.agent.relay.fleet._SLOW", {"Diagnose": DEADLINE})
        assert not (await fleet.ask("Diagnose", admin.DiagnoseRequest())).missing
