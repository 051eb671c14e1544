"""An engine whose image has neither Penstock nor gRPC, and gets the engine part from a volume."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar

import pytest

from demo.common.agent import Agent
from demo.common.client import complete
from demo.common.model import tiny_model
from demo.common.steps import PROMPT
from demo.servers import ROOT, Server, ServerSpec
from demo.servers import _environment as environment
from tests.support.agent.agent import short_directory
from tests.support.deploy.payloads import (
    bare_python,
    build_payload,
    installed_wheels,
    run_stage,
    source_wheel,
)
from tests.support.engine.bench import AgentBench, wait_known
from tests.support.engine.forked_child import ForkedChild
from tests.support.forks.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine


class ImageChild(ForkedChild):
    """A fork of a process of the image's Python that has imported vLLM, and has the staged files on its path."""

    _fork_servers: ClassVar[dict[str, ForkServer]] = {}
    path: ClassVar[str] = ""

    @classmethod
    def _server(cls, imported: str) -> ForkServer:
        if imported not in cls._fork_servers:
            spec = ServerSpec("any", env={"PYTHONPATH": cls.path})
            env = environment(spec, side_channel_port=0)
            cls._fork_servers[imported] = ForkServer(imported, env=env, cwd=ROOT, read=["OMP_NUM_THREADS"])
        return cls._fork_servers[imported]


@pytest.fixture(scope="module")
def engine_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stage the engine part of this checkout, with gRPC."""
    place = tmp_path_factory.mktemp("payload")
    payload = build_payload(place / "payload", source_wheel(place), installed_wheels(place / "wheels"))
    run_stage(payload, place / "engine")
    return place / "engine"


@pytest.fixture(scope="module")
def start(
    tmp_path_factory: pytest.TempPathFactory, engine_part: Path
) -> Iterator[Callable[[str, str], Server]]:
    """Give what starts a server, with a log of its own, where neither is installed: the staged files on its path."""
    place = tmp_path_factory.mktemp("image")
    python = bare_python(place / "venv", "penstock-vllm", "grpcio")
    path = f"{engine_part}:{ROOT}"

    def start(name: str, endpoint: str) -> Server:
        env = {"PENSTOCK_ENDPOINT": endpoint, "PENSTOCK_SERVER": name, "PYTHONPATH": path}
        spec = ServerSpec(name, "kv_both", env=env)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ImageChild, "path", path)
            patch.setattr("demo.servers.Child", ImageChild)
            patch.setattr(sys, "executable", str(python))
            return Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=place)

    yield start
    ImageChild.end_servers()


def test_a_staged_engine_part_is_at_work(start: Callable[[str, str], Server]) -> None:
    """The engine starts hooked, its requests are known to the agent, and nothing of ours fails."""
    with short_directory() as directory:
        agent = Agent(directory, engines=1)
        agent.start()
        server = start("staged", agent.endpoint)
        try:
            server.wait_ready()
            wait_known(agent, "staged")
            assert complete(server.url, PROMPT).status == HTTPStatus.OK
            bench = AgentBench(agent, "staged", labels={}, policy="none")
            try:
                bench.event("request_closed")
                for hook in ("scheduler", "nixl", "trace_context"):
                    assert bench.value("penstock_hook_installed", hook=hook) >= 1, hook
                assert bench.guard_errors() == []
            finally:
                bench.close()
        finally:
            server.stop()
            agent.stop()


@pytest.mark.long
def test_a_broken_engine_part_is_left_out(start: Callable[[str, str], Server], engine_part: Path) -> None:
    """The engine serves as without Penstock, and says once a process why."""
    (engine_part / "penstock" / "instrumentation" / "runtime.py").write_text("def broken(:\n")
    server = start("broken", "unix:///nowhere/ingest.sock")
    try:
        server.wait_ready()
        assert complete(server.url, PROMPT).status == HTTPStatus.OK
        log = server.child.log.read_text()
        assert "penstock stays off, vLLM is not affected: " in log
        assert "Traceback" not in log
    finally:
        server.stop()
