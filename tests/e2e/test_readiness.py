"""The readiness of a running server: it answers as liveness does, and the first question connects an idle server to its agent."""

from __future__ import annotations

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


@pytest.fixture
def idle(kv: Bench) -> Iterator[tuple[str, Server]]:
    """Run one more server that has had no request but for its liveness, and have the agent forget it at the end."""
    name = new_name("idle")
    spare = Spare(kv.stack, name)
    try:
        server = spare.server()
        until(lambda: f"{name}/0" in kv.ctl("get", "engines"), f"{name}/0 is not known")
        yield name, server
    finally:
        spare.stop()
        until(lambda: kv.agent.ctl("forget", "engine", f"{name}/0").code == 0, f"{name}/0 is not forgotten")


def _front_ends(kv: Bench, name: str) -> list[admin.Source]:
    """Return the API processes of the server *name* that the agent is connected to, once it has a snapshot of them."""
    engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
    return [
        source
        for engine in engines
        if engine.key.server == name
        for source in engine.sources
        if source.hello.process == "api" and source.connected and source.hooks
    ]


def test_the_first_question_connects_an_idle_server(kv: Bench, idle: tuple[str, Server]) -> None:
    """Liveness alone does not; its agent learns that it answers for its readiness."""
    name, server = idle
    assert fetch(f"{server.url}/health").status == 200
    assert _front_ends(kv, name) == []

    assert fetch(f"{server.url}{_READY}").status == 200
    (front_end,) = until(lambda: _front_ends(kv, name), f"no API process of {name} is connected")
    assert {hook.name for hook in front_end.hooks if hook.installed} >= {"readiness", "trace_context"}
