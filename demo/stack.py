"""Everything that the demo runs: agent, trace backend, prefill and decode server."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.common.model import tiny_model
from demo.common.workspace import run_directory, start_watch
from demo.servers import ROOT, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver


@dataclass(frozen=True, slots=True)
class Stack:
    """The running parts.

    Attributes:
        traces: where spans go; the receiver's own endpoint unless one was given.
        receiver: None where OTEL_EXPORTER_OTLP_ENDPOINT names somebody else's.

    """

    agent: Agent
    traces: str
    receiver: Receiver | None
    prefill: Server
    decode: Server


def specs(endpoint: str) -> tuple[ServerSpec, ServerSpec]:
    """Return the prefill and the decode server, which starts with ``kv_load_failure_policy`` fail."""
    prefill, decode = (
        ServerSpec(
            name,
            kv_role,
            kv_load_failure_policy=policy,
            env={
                "PENSTOCK_ENDPOINT": endpoint,
                "PENSTOCK_SERVER": name,
                "PENSTOCK_LABELS": f"role={name}",
            },
        )
        for name, kv_role, policy in (("prefill", "kv_producer", None), ("decode", "kv_consumer", "fail"))
    )
    return prefill, decode


@contextmanager
def running_stack(say: Callable[[str], None]) -> Iterator[Stack]:
    """Start all parts, wait until both servers serve, and leave nothing running at the end.

    The files of the run (sockets, state, logs) are removed unless it fails.

    Raises:
        ChildError: a part did not start.

    """
    with run_directory(say) as (directory, parts):
        yield _start(directory, parts, say)


def _start(directory: Path, parts: ExitStack, say: Callable[[str], None]) -> Stack:
    watch = start_watch(directory, parts, say)
    agent = watch.agent
    model = tiny_model(ROOT / ".cache" / "models")
    servers: list[Server] = []
    for spec in specs(agent.endpoint):
        server = Server(spec, model=model, logs=directory)
        parts.callback(server.stop)
        servers.append(server)
    for server in servers:
        server.wait_ready(say=say)
    return Stack(agent, watch.traces, watch.receiver, *servers)
