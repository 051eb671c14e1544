"""The readiness of a running server: it answers as liveness does, and the first question connects an idle server to its agent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.client import fetch
from demo.common.steps import until
from tests.support.engine.bench import new_name
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import Spare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.servers import Server
    from tests.support.kv.bench import Bench

# Servers of their own on the agent of a stack that others use.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

_READY = "/health?penstock=ready"
_QUESTIONS = 8


@pytest.fixture(
    params=[
        pytest.param((), id="one-api-server"),
        pytest.param(("--api-server-count", "2"), id="two-api-servers", marks=pytest.mark.long),
    ]
)
def idle(kv: Bench, request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    """Run one more server that has had no request but for its liveness, and have the agent forget it at the end."""
    name = new_name("idle")
    spare = Spare(kv.stack, name, *request.param)
    try:
        server = spare.server()
        until(lambda: f"{name}/0" in kv.ctl("get", "engines"), f"{name}/0 is not known")
        yield name, server
    finally:
        spare.stop()
        until(lambda: kv.agent.ctl("forget", "engine", f"{name}/0").code == 0, f"{name}/0 is not forgotten")


def _front_ends(kv: Bench, name: str) -> list[admin.Source]:
    """Return the API processes of the server *name* that the agent is connected to."""
    engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
    return [
        source
        for engine in engines
        if engine.key.server == name
        for source in engine.sources
        if source.hello.process == "api" and source.connected
    ]


def test_the_first_question_connects_an_idle_server(kv: Bench, idle: tuple[str, Server]) -> None:
    """And each of its API processes, once it has been asked."""
    name, server = idle
    assert fetch(f"{server.url}/health").status == 200
    assert _front_ends(kv, name) == []
    processes = 2 if "--api-server-count" in server.spec.args else 1

    def asked() -> bool:
        # The system chooses who answers: questions at the same time reach both.
        with ThreadPoolExecutor(_QUESTIONS) as askers:
            answers = list(askers.map(fetch, [f"{server.url}{_READY}"] * _QUESTIONS))
        assert {answer.status for answer in answers} == {200}
        return len(_front_ends(kv, name)) == processes

    until(asked, f"not all API processes of {name} are connected")
