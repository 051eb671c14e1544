"""vLLM without an endpoint, and with one where no agent is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.client import complete, prefill_decode
from demo.model import tiny_model
from demo.servers import ROOT, Server, ServerSpec
from demo.steps import PROMPT, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.engine

_GRPC = {"event_engine", "grpc_global_tim", "lifeguard"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Start a prefill server without Penstock, and a decode server whose agent is not there."""
    logs = tmp_path_factory.mktemp("without")
    model = tiny_model(ROOT / ".cache" / "models")
    specs = (
        ServerSpec("prefill", "kv_producer"),
        ServerSpec(
            "decode",
            "kv_consumer",
            "fail",
            env={
                "PENSTOCK_ENDPOINT": f"unix://{logs}/nobody.sock",
                "PENSTOCK_LABELS": "role=decode",
                # The real one, which contains: this is what production runs.
                "PENSTOCK_GUARD": "",
            },
        ),
    )
    started: list[Server] = []
    try:
        started.extend(Server(spec, model=model, logs=logs) for spec in specs)
        for server in started:
            server.wait_ready()
        yield started[0], started[1]
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


def test_requests_are_served(servers: tuple[Server, Server]) -> None:
    """A transfer between the two, and the same text as without it."""
    prefill, decode = servers
    for number in range(4):
        prompt = f"{PROMPT * 3}{number}"
        _, answer = prefill_decode(prefill.url, decode.url, prompt)
        assert answer.completion == complete(prefill.url, prompt).completion


def test_without_an_endpoint_no_channel_is_opened(servers: tuple[Server, Server]) -> None:
    """No process of that server runs gRPC's threads; one with an endpoint does."""
    prefill, decode = servers

    assert until(lambda: _GRPC & _threads(decode), "Decode does not even try to reach its agent")
    assert not _GRPC & _threads(prefill)
