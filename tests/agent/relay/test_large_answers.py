"""How many calls and bytes a relay takes on at a time; what is too much is refused with a sentence."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import pytest
from penstock.agent.relay.discovery import AgentFinder, AgentSet
from penstock.agent.relay.fleet import Fleet
from penstock.agent.relay.large_answers import LargeAnswers, Room, weight
from penstock.agent.relay.service import RelayCalls
from penstock.proto.v1 import admin_pb2 as admin

MIB = 1 << 20


def test_room() -> None:
    """What is small has room always; what is given back has it again."""
    room = Room(100, always=10)
    assert room.take(90)
    assert not room.take(11)
    assert room.take(10)
    assert room.take(10)
    room.give(90)
    assert room.take(80)


def test_entries_weigh_more_than_their_bytes() -> None:
    """Two bytes make an entry; an answer has a bounded number of them."""
    assert weight(400_000) > 20 * MIB
    assert 40 * MIB < weight(16 * MIB) < 64 * MIB


async def _read(large: LargeAnswers, size: int, begun: list[int], go_on: asyncio.Event) -> None:
    with large.calling():
        for _ in range(2):
            # The second question of a call has the turn of the first.
            async with large.reading(size):
                begun.append(size)
        await go_on.wait()


async def test_two_large_ones_at_a_time() -> None:
    """The third waits until a call has ended; small ones do not wait."""
    large, begun, go_on = LargeAnswers(), list[int](), asyncio.Event()
    calls = [asyncio.create_task(_read(large, size, begun, go_on)) for size in (64 * MIB,) * 3 + (MIB,)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun.count(64 * MIB) == 4
    assert begun.count(MIB) == 2
    go_on.set()
    await asyncio.gather(*calls)
    assert begun.count(64 * MIB) == 6
    async with large.reading(64 * MIB), large.reading(64 * MIB):
        # Without a call, as the page asks, each has a turn while it reads.
        pass


async def _turns_left(large: LargeAnswers) -> int:
    """Return how many may read large answers now."""
    left = 0
    async with AsyncExitStack() as parts:
        while left < 3:
            turn = large.reading(64 * MIB)
            waits = asyncio.ensure_future(parts.enter_async_context(turn))
            for _ in range(10):
                await asyncio.sleep(0)
            if not waits.done():
                waits.cancel()
                await asyncio.wait([waits])
                break
            left += 1
    return left


async def test_two_questions_of_one_call_wait_for_one_turn() -> None:
    """While others have both turns they wait together; afterwards both turns are there again."""
    large, begun = LargeAnswers(), list[int]()

    async def question() -> None:
        async with large.reading(64 * MIB):
            begun.append(1)

    async def call() -> None:
        with large.calling():
            await asyncio.gather(question(), question())

    async with large.reading(64 * MIB), large.reading(64 * MIB):
        waits = asyncio.create_task(call())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not begun
    await waits
    assert begun == [1, 1]
    assert await _turns_left(large) == 2


@pytest.mark.parametrize("before", [True, False], ids=["its turn came before", "it waits"])
async def test_a_question_that_outlasts_its_call(before: bool) -> None:
    """Another of the same call has failed: the turn comes back with the last of them."""
    large, go_on, questions = LargeAnswers(), asyncio.Event(), list[asyncio.Task[None]]()

    async def question() -> None:
        async with large.reading(64 * MIB):
            await go_on.wait()

    async with AsyncExitStack() as parts:
        for _ in range(1 if before else 2):
            await parts.enter_async_context(large.reading(64 * MIB))
        with large.calling():
            questions.append(asyncio.create_task(question()))
            for _ in range(10):
                await asyncio.sleep(0)
    assert await _turns_left(large) == 1
    go_on.set()
    await asyncio.gather(*questions)
    assert await _turns_left(large) == 2


class _Agent:
    """One that answers with *body*, or is silent."""

    state = "connected"

    def __init__(self, name: str, body: bytes | None) -> None:
        self.place = SimpleNamespace(name=name)
        self._body = body

    async def ask(self, *_: Any, **__: Any) -> bytes:
        if self._body is None:
            await asyncio.Event().wait()
        return self._body or b""

    async def read(self, _method: str, body: bytes) -> admin.ListEventsResponse:
        return admin.ListEventsResponse.FromString(body)


async def test_callers_that_leave_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hang up after some agents have answered, the next one is answered."""
    body = admin.ListEventsResponse(events=[{"event": {"request_id": "x" * (15 * MIB)}}]).SerializeToString()
    fleet = Fleet(AgentFinder(AgentSet()), None, 1.0)
    agents: list[Any] = [_Agent("loud", body), _Agent("silent", None)]
    monkeypatch.setattr(fleet, "agents", lambda: agents)
    for _ in range(20):
        leaves = asyncio.create_task(fleet.ask("ListEvents", admin.ListEventsRequest()))
        for _ in range(10):
            await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
        assert leaves.cancelled()
    del agents[1]
    answers = await fleet.ask("ListEvents", admin.ListEventsRequest())
    assert [each.size for each in answers.found] == [len(body)]
    assert fleet.large.waiting.take(128 * MIB)


class _AbortedError(Exception):
    """A call was ended with a status."""


class _Context:
    """A call whose caller has not read its response."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def add_done_callback(self, callback: Any) -> None:
        self.done.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise _AbortedError(code, details)


class _Details(NamedTuple):
    method: str


async def _wrapped(answer: Any, calls: RelayCalls, method: str = "ListEvents") -> Any:
    """Return the bounded method that returns what *answer* does."""

    async def unary(_request: Any, _context: Any) -> Any:
        return await answer()

    async def continuation(_: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(unary)

    details: Any = _Details(f"/penstock.v1.Admin/{method}")
    return (await calls.intercept_service(continuation, details)).unary_unary


async def test_responses_that_nobody_reads() -> None:
    """They are bounded together; small ones are sent, and large ones again as soon as one was read."""
    size = 15 * MIB

    async def answer() -> admin.Explanation:
        return admin.Explanation(request_id="x" * size)

    call = await _wrapped(answer, RelayCalls(LargeAnswers()))
    open_calls = [_Context() for _ in range(8)]
    for each in open_calls:
        assert len(await call(None, each)) > size
    with pytest.raises(
        _AbortedError, match=r"RESOURCE_EXHAUSTED.*128 MiB of this relay's responses.*try again"
    ):
        await call(None, _Context())
    size = 10
    await call(None, _Context())
    for callback in open_calls[0].done:
        callback(None)
    size = 15 * MIB
    await call(None, _Context())


async def test_a_response_that_is_too_large() -> None:
    """It is refused with its size; gRPC itself would say nothing that helps."""

    async def answer() -> admin.Explanation:
        return admin.Explanation(request_id="x" * (17 * MIB))

    with pytest.raises(_AbortedError, match="the response has 17 MiB, the limit is 16; narrow the request"):
        await (await _wrapped(answer, RelayCalls(LargeAnswers())))(None, _Context())


async def test_calls_that_wait() -> None:
    """32 calls run and 256 wait; one more is told to try again."""
    go_on, calls = asyncio.Event(), RelayCalls(LargeAnswers())

    async def answer() -> admin.Explanation:
        await go_on.wait()
        return admin.Explanation()

    call = await _wrapped(answer, calls)
    many = [asyncio.create_task(call(None, _Context())) for _ in range(32 + 256)]
    await asyncio.sleep(0)
    with pytest.raises(_AbortedError, match="256 calls wait at this relay; try again"):
        await call(None, _Context())
    go_on.set()
    assert await asyncio.gather(*many) == [b""] * len(many)
    assert await call(None, _Context()) == b""
