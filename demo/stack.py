"""The processes of the demo: agent, trace backend, prefill and decode server."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.common.model import tiny_model
from demo.common.progress import begin_phase, report
from demo.common.workspace import run_directory, start_agent
from demo.servers import ROOT, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver


@dataclass(frozen=True, slots=True)
class Stack:
    """The running parts.

    Attributes:
        traces: the OTLP endpoint that spans are exported to.
        receiver: the demo's own backend; None if OTEL_EXPORTER_OTLP_ENDPOINT is set.

    """

    agent: Agent
    traces: str
    receiver: Receiver | None
    prefill: Server
    decode: Server


def specs(endpoint: str) -> tuple[ServerSpec, ServerSpec]:
    """Return the prefill and the decode server; decode has ``kv_load_failure_policy: fail``."""
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
def running_stack() -> Iterator[Stack]:
    """Start all processes, wait until both servers are ready, and stop everything at the end.

    Removes the run's files (sockets, state, logs) unless it fails.

    Raises:
        ChildError: a process did not start.

    """
    with run_directory() as (directory, parts):
        yield _start(directory, parts)


def _start(directory: Path, parts: ExitStack) -> Stack:
    begin_phase("the agent starts")
    backend = start_agent(directory, parts, report)
    agent = backend.agent
    begin_phase("two vLLM servers, prefill and decode, start on the CPU")
    model = tiny_model(ROOT / ".cache" / "models")
    servers: list[Server] = []
    for spec in specs(agent.endpoint):
        server = Server(spec, model=model, logs=directory)
        parts.callback(server.stop)
        servers.append(server)
    for server in servers:
        server.wait_ready(say=report)
    return Stack(agent, backend.traces, backend.receiver, *servers)
