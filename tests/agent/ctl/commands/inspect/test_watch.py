"""``agentctl watch`` outlives the agent: every event is printed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from penstock.agent.ctl.commands.inspect.events import follow
from penstock.agent.ctl.errors import UnreachableError
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAIN = "from penstock.agent.ctl.main import main; main()"


class _Agent:
    """A log, and streams of it that end on request."""

    def __init__(self) -> None:
        self.log: list[admin.LoggedEvent] = []
        self.away = 0
        self.asked: list[admin.ListEventsRequest] = []

    def happen(self, *names: str) -> None:
        for name in names:
            self.log.append(admin.LoggedEvent(batch=len(self.log) + 1, event={"request_id": name}))

    def call(self, method: str, _: object) -> admin.AgentStatus:
        assert method == "GetStatus"
        if self.away:
            self.away -= 1
            raise UnreachableError("no agent answers")
        return admin.AgentStatus(log_last=len(self.log))

    def stream(self, _: str, request: admin.ListEventsRequest) -> Iterator[admin.LoggedEvent]:
        copy = admin.ListEventsRequest()
        copy.CopyFrom(request)
        self.asked.append(copy)
        begin = request.after_batch if request.after_batch <= len(self.log) else 0
        for at in range(begin, 10**6):
            if at >= len(self.log):
                raise UnreachableError("it hung up")
            yield self.log[at]


def _names(
    agent: _Agent, during: list[tuple[str, ...]], request: admin.ListEventsRequest | None = None
) -> list[str]:
    """Follow *agent*; during its n-th outage the n-th names are logged. Ends with the last of them."""

    def pause(_: float) -> None:
        if not agent.away:
            agent.happen(*during.pop(0))

    seen: list[str] = []
    for item in follow(agent, request or admin.ListEventsRequest(), pause):  # type: ignore[arg-type]
        seen.append(item.event.request_id)
        if not during and seen and agent.log[-1].event.request_id == seen[-1]:
            return seen
    raise AssertionError("it ended by itself")


def test_events_of_an_outage_of_the_agent_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The watch resumes at its position after several outages, and reports them on stderr."""
    agent = _Agent()
    agent.happen("before")
    agent.away = 0
    assert _names(agent, [("a", "b"), ("c",)]) == ["a", "b", "c"]
    assert (
        capsys.readouterr().err.splitlines()
        == [
            "connection to the agent lost; reconnecting",
            "reconnected to the agent",
        ]
        * 2
    )
    assert [request.after_batch for request in agent.asked] == [1, 0, 2]


def test_filters_hold_after_the_agent_came_back() -> None:
    """Every filter is sent again."""
    agent = _Agent()
    request = admin.ListEventsRequest(kinds=["load_outcome"], peer="p:1", limit=7)
    assert _names(agent, [("a",)], request) == ["a"]
    assert (list(agent.asked[1].kinds), agent.asked[1].peer) == (["load_outcome"], "p:1")


def test_a_log_that_is_a_new_one_is_read_from_its_beginning() -> None:
    """Positions of another log are not used."""
    agent = _Agent()
    agent.happen(*"12345")

    def reset(_: float) -> None:
        agent.log.clear()
        agent.happen("new")

    first = next(iter(follow(agent, admin.ListEventsRequest(), reset)))  # type: ignore[arg-type]
    assert first.event.request_id == "new"


def test_no_agent_to_begin_with_is_a_failure() -> None:
    """Without an agent at the start, the command exits with 1."""
    agent = _Agent()
    agent.away = 1
    with pytest.raises(UnreachableError):
        next(follow(agent, admin.ListEventsRequest()))  # type: ignore[arg-type]


@pytest.fixture
def agent() -> Iterator[AgentProcess]:
    """Run an agent."""
    with running_agent() as running:
        yield running


def test_a_real_agent_may_be_killed(agent: AgentProcess) -> None:
    """After kill -9 of the agent, all events are printed in order, once; an interrupt exits with 0."""
    watch = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "watch", "-o", "json", "--kind", "transfer_failure"],
        env={**os.environ, "AGENTCTL_ADDRESS": agent.admin},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: list[str] = []

    def read() -> None:
        assert watch.stdout is not None
        seen.extend(json.loads(line)["event"]["requestId"] for line in watch.stdout)

    reading = threading.Thread(target=read)
    reading.start()
    engine = FakeEngine(agent.listen)
    try:
        engine.connect()

        def told() -> bool:
            engine.publish(transfer_failure(str(engine.sent)))
            return bool(seen)

        wait_until(told, "the watch has begun")
        agent.kill()
        agent.start()
        engine.connect()
        last = str(engine.sent)
        engine.publish(transfer_failure(last))
        wait_until(lambda: last in seen, "the watch tells what came after the kill")
        assert seen == [str(number) for number in range(int(seen[0]), engine.sent)]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 130
        assert watch.stderr is not None
        err = watch.stderr.read().strip().splitlines()
        assert err == ["connection to the agent lost; reconnecting", "reconnected to the agent"]
    finally:
        engine.disconnect()
        watch.kill()
        watch.wait()
        reading.join()
        for stream in (watch.stdout, watch.stderr):
            assert stream is not None
            stream.close()
