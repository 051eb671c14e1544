"""vLLM without an endpoint, and with one where no agent is."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.common.client import complete, prefill_decode
from demo.common.model import tiny_model
from demo.common.steps import PROMPT
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Lonely:
    """A prefill server without Penstock, and a decode server whose agent is not there."""

    prefill: Server
    decode: Server
    nobody: Path


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lonely]:
    """Start both."""
    logs = tmp_path_factory.mktemp("without")
    model = tiny_model(ROOT / ".cache" / "models")
    started: list[Server] = []
    with short_directory() as directory:
        nobody = directory / "nobody.sock"
        environment = {"PENSTOCK_ENDPOINT": f"unix://{nobody}", "PENSTOCK_LABELS": "role=decode"}
        specs = (
            ServerSpec("prefill", "kv_producer"),
            ServerSpec("decode", "kv_consumer", "fail", env=environment),
        )
        try:
            started.extend(Server(spec, model=model, logs=logs) for spec in specs)
            for server in started:
                server.wait_ready()
            prefill, decode = started
            yield Lonely(prefill, decode, nobody)
        finally:
            for server in started:
                server.stop()


def _threads(server: Server) -> set[str]:
    """Return the names of all threads of all processes of a server, which are one process group."""
    processes = Path("/proc").glob("[0-9]*")
    return {name for process in processes for name in _threads_of(process, server.child.pid)}


def _threads_of(process: Path, group: int) -> list[str]:
    try:
        # After the command, which is in brackets: state, parent, group.
        if int(process.joinpath("stat").read_text().rpartition(")")[2].split()[2]) != group:
            return []
        return [task.joinpath("comm").read_text().strip() for task in process.glob("task/*")]
    except OSError:
        # It ended while we looked.
        return []


def test_requests_are_served(lonely: Lonely) -> None:
    """A transfer between the two, and the same text as without it."""
    for number in range(4):
        prompt = f"{PROMPT * 3}{number}"
        _, answer = prefill_decode(lonely.prefill.url, lonely.decode.url, prompt)
        assert answer.completion == complete(lonely.prefill.url, prompt).completion


def test_without_an_endpoint_no_channel_is_opened(lonely: Lonely) -> None:
    """No process of that server runs gRPC's threads."""
    assert not {"event_engine", "grpc_global_tim", "lifeguard"} & _threads(lonely.prefill)


def test_an_engine_goes_on_looking_for_its_agent(lonely: Lonely) -> None:
    """An agent that starts later is found."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lonely.nobody))
        listener.listen()
        listener.settimeout(60)
        connection, _ = listener.accept()
        connection.close()
