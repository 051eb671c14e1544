"""Callers that hang up at any moment: each call ends, and the agent's log says nothing of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.agent.hostile_calls import begun, cut_calls, frame, message, opened, raw_call, reset
from tests.support.fleet.hostile_agent import METHODS
from tests.support.fleet.hostile_answers import WORDS, Words, filled

if TYPE_CHECKING:
    from collections.abc import Iterator

# Orders that come through are told, each with a line.
MOST_LINES = 400
DELAYS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05) * 3


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent."""
    with short_directory() as directory:
        running = AgentProcess(directory).start()
        try:
            yield running
        finally:
            running.stop()


def _request(method: str, words: Words) -> bytes:
    body: bytes = filled(METHODS[method].input_type, words).SerializeToString()
    return body


def _complaints(agent: AgentProcess) -> list[dict[str, object]]:
    """Return what the agent's log has of errors and warnings, asyncio's among them; it has few lines in all."""
    records = agent.records()
    assert 0 < len(records) < MOST_LINES
    return [each for each in records if each["level"] != "info"]


def _still_answers(agent: AgentProcess) -> None:
    with grpc.insecure_channel(agent.admin) as channel:
        assert AdminStub(channel).GetStatus(admin.GetStatusRequest(), timeout=30).version


def test_calls_that_are_cut_at_any_moment(agent: AgentProcess) -> None:
    """By a deadline, by their callers, or with the connection: also while a thread reads the log for them."""
    bodies = [
        (name, body, METHODS[name].server_streaming)
        for name in METHODS
        for body in (_request(name, Words()), b"", b"\xff" * 20)
    ]
    asyncio.run(cut_calls(agent.admin, bodies, DELAYS))
    _still_answers(agent)
    assert _complaints(agent) == []


def test_frames_that_are_half_of_something(agent: AgentProcess) -> None:
    """Headers alone, half a message, several where one is due, a reset at once, a length without end, another stream."""
    path = agent.admin.removeprefix("unix://")
    for turn, name in enumerate(METHODS):
        whole = message(_request(name, Words()))
        for pieces in (
            [],
            [whole],
            [whole[: 5 + turn % len(whole)]],
            [whole, reset()],
            [message(b"", last=False)],
            [reset()],
            [whole] * 3,
            [frame(0, 1, 1, b"\0\xff\xff\xff\xff")],
            [frame(0, 1, 3, b"x")],
            [frame(1, 4, 1, b"\xff" * 40)],
        ):
            raw_call(path, [begun(), opened(name), *pieces], read=9 * (turn % 2))
    _still_answers(agent)
    assert _complaints(agent) == []


@pytest.mark.parametrize("wrong", sorted(WORDS))
def test_requests_that_say_what_cannot_be(agent: AgentProcess, wrong: str) -> None:
    """Extremes of each type in every field: each is answered, and none is an event of the agent's log."""
    bodies = [(name, _request(name, WORDS[wrong]), METHODS[name].server_streaming) for name in METHODS]
    asyncio.run(cut_calls(agent.admin, bodies, (0.3,)))
    _still_answers(agent)
    assert _complaints(agent) == []
