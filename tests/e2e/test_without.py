"""vLLM without an endpoint, and with one where no agent is yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from demo.common.client import complete, prefill_decode
from demo.common.model import tiny_model
from demo.common.processes import Child
from demo.common.steps import PROMPT, until
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import wait_known

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Lonely:
    """A prefill server without Penstock, and a decode server whose agent is not there.

    Attributes:
        place: the agent's directory.

    """

    prefill: Server
    decode: Server
    place: Path


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lonely]:
    """Start both; decode as ``vllm serve`` does, with an interpreter for each process."""
    logs = tmp_path_factory.mktemp("without")
    model = tiny_model(ROOT / ".cache" / "models")
    started: list[Server] = []
    with short_directory() as directory:
        endpoint = Agent(directory).endpoint
        environment = {
            "PENSTOCK_ENDPOINT": endpoint,
            "PENSTOCK_SERVER": "decode",
            "PENSTOCK_LABELS": "role=decode",
        }
        specs = (
            ServerSpec("prefill", "kv_producer"),
            ServerSpec("decode", "kv_consumer", "fail", env=environment),
        )
        try:
            started.append(Server(specs[0], model=model, logs=logs))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("demo.servers.Child", Child)
                started.append(Server(specs[1], model=model, logs=logs))
            for server in started:
                server.wait_ready()
            prefill, decode = started
            yield Lonely(prefill, decode, directory)
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


def test_an_agent_that_is_away_is_a_line_of_vllms_log(lonely: Lonely) -> None:
    """The line has the prefix of vLLM's own lines: process, level, time."""

    def lines() -> list[str]:
        log = lonely.decode.child.log.read_text(errors="replace")
        return [line for line in log.splitlines() if "penstock delivers nothing" in line]

    until(lines, "vLLM's log does not say that the agent is away")
    prefix = re.compile(r"\(\S+ pid=\d+\) WARNING \d\d-\d\d \d\d:\d\d:\d\d \[exporter\.py:\d+\] penstock")
    assert [line for line in lines() if not prefix.match(line)] == []


def test_an_agent_that_starts_later_is_found(lonely: Lonely) -> None:
    """It knows all processes of the engine, gets what follows, and contains no error of ours."""
    agent = Agent(lonely.place, engines=1)
    agent.start()
    try:
        wait_known(agent, "decode")
        before = agent.metrics().value("penstock_transfers_total", server="decode", result="ok")
        _, answer = prefill_decode(lonely.prefill.url, lonely.decode.url, f"{PROMPT * 3}late")
        assert answer.status == HTTPStatus.OK
        until(
            lambda: agent.metrics().value("penstock_transfers_total", server="decode", result="ok") > before,
            "The transfer is not counted",
        )
        assert not agent.metrics().select("penstock_guard_errors_total")
    finally:
        agent.stop()
