"""Where a relay's agents are: what is found twice, sources that fail in any way, agents that move."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import ConfigError
from penstock.agent.relay.config import AgentTls
from penstock.agent.relay.connection import UP
from penstock.agent.relay.discovery import MAX_AGENTS, AgentFinder, AgentPlace, AgentSet, choose
from penstock.agent.relay.fleet import Fleet
from penstock.agent.relay.merged_streams import EventStream
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import running_agent
from tests.support.agent.batches import transfer_failure
from tests.support.agent.certificates import Authority
from tests.support.agent.ingest_client import FakeEngine
from tests.support.policy.feed import DEADLINE, eventually

if TYPE_CHECKING:
    from pathlib import Path

A, B, MOVED = AgentPlace("a", "10.0.0.1:1"), AgentPlace("b", "10.0.0.2:1"), AgentPlace("a", "10.0.0.3:1")
PLACES = st.builds(AgentPlace, st.sampled_from("abcd"), st.sampled_from(("1:1", "2:1", "3:1")))


@given(st.lists(PLACES))
def test_the_first_of_a_name_is_asked(found: list[AgentPlace]) -> None:
    """Each name has its first address; there is a sentence where another is left out, and only there."""
    places, sentence = choose(found)
    assert {*places} == {place.name for place in found}
    for name, place in places.items():
        assert place == next(each for each in found if each.name == name)
    assert bool(sentence) == bool({*found} - {*places.values()})


def test_what_cannot_be_asked_has_a_name() -> None:
    """Two of one name with both addresses; too many with how many there are."""
    assert choose([A, B, MOVED])[1] == (
        "two agents of one name: a (10.0.0.1:1 is asked, 10.0.0.3:1 is not); give each a name of its own"
    )
    many = [AgentPlace(f"p{number:05d}", "1:1") for number in range(MAX_AGENTS + 1)]
    places, sentence = choose(reversed(many))
    assert places == {place.name: place for place in many[:-1]}
    assert sentence == "2001 agents were found, a relay asks 2000; start one for each part"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no such host"), "no such host"),
        (TimeoutError(), "no answer"),
        (ConfigError("the file is gone"), "the file is gone"),
        (UnicodeError("label too long"), "UnicodeError: label too long"),
        (ValueError("not a list"), "ValueError: not a list"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_source_that_fails(error: Exception, reason: str) -> None:
    """Its last agents stay, the others' come, and it is read again."""
    broken = False

    async def one() -> list[AgentPlace]:
        if broken:
            raise error
        return [A]

    others: list[AgentPlace] = []

    async def other() -> list[AgentPlace]:
        return others

    finder = AgentFinder(AgentSet(), {"one": one, "other": other})
    await finder.look_up()
    assert (finder.places, finder.error) == ({"a": A}, "")
    broken = True
    others.append(B)
    await finder.look_up()
    assert finder.places == {"a": A, "b": B}
    assert finder.error == f"one cannot be read ({reason}); its last agents stay"
    broken = False
    await finder.look_up()
    assert (finder.places, finder.error) == ({"a": A, "b": B}, "")


async def _read(fleet: Fleet, request: admin.ListEventsRequest, seen: list[str]) -> None:
    """Put the requests' ids of the events into *seen* until cancelled."""
    async with aclosing(EventStream(fleet, request).events()) as events:
        async for event in events:
            seen += [event.event.request_id]


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_agent_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of the same name at another address is asked there, and a reader of events goes on with it."""
    monkeypatch.setattr("penstock.agent.relay.fleet._LOOK_SECONDS", 0.1)
    with running_agent() as first, running_agent() as second:
        place = AgentPlace("pod", first.admin)

        async def source() -> list[AgentPlace]:
            return [place]

        fleet = Fleet(AgentFinder(AgentSet(), {"source": source}), None, 30.0)
        async with AsyncExitStack() as parts:
            parts.push_async_callback(fleet.close)
            following = asyncio.ensure_future(fleet.run())
            parts.callback(following.cancel)

            def connected(address: str) -> bool:
                return [(each.place.address, each.state) for each in fleet.agents()] == [(address, UP)]

            await eventually(lambda: connected(first.admin), "the agent is connected")
            request = admin.ListEventsRequest(kinds=["transfer_failure"])
            request.since.FromSeconds(3600)
            seen: list[str] = []

            reading = asyncio.ensure_future(_read(fleet, request, seen))
            parts.push_async_callback(_ended, reading)
            with FakeEngine(first.listen) as engine:
                await asyncio.to_thread(
                    engine.publish, transfer_failure("cmpl-first", time_ns=time.time_ns())
                )
                await eventually(lambda: "cmpl-first" in seen, "an event of the first is read")
            place = AgentPlace("pod", second.admin)
            await eventually(lambda: connected(second.admin), "the agent is connected where it is now")
            with FakeEngine(second.listen) as engine:
                # The reader follows it from some moment on, which may be after the first of them.
                end = time.monotonic() + DEADLINE
                while "cmpl-second" not in seen:
                    assert time.monotonic() < end, seen
                    failure = transfer_failure("cmpl-second", time_ns=time.time_ns())
                    await asyncio.to_thread(engine.publish, failure)
                    await asyncio.sleep(0.1)


async def test_certificates_that_cannot_be_read_for_a_while(tmp_path: Path) -> None:
    """An agent that comes meanwhile is connected with those of the last time; they are read again afterwards."""
    authority = Authority(tmp_path / "pki")
    files = authority.issue("relay")
    tls = AgentTls(authority.cert, files.cert, files.key)
    before = tls.contents()
    key = files.key.read_bytes()
    files.key.unlink()
    assert tls.contents() == before
    found: list[AgentPlace] = []

    async def source() -> list[AgentPlace]:
        return found

    fleet = Fleet(AgentFinder(AgentSet(), {"source": source}), tls, 2.0)
    found.append(AgentPlace("new", "127.0.0.1:1"))
    following = asyncio.ensure_future(fleet.run())
    try:
        await eventually(lambda: [each.place.name for each in fleet.agents()] == ["new"], "it is in the list")
        assert not following.done()
    finally:
        following.cancel()
        await fleet.close()
    files.key.write_bytes(key + b"\n")
    assert tls.contents()[1] == key + b"\n"
