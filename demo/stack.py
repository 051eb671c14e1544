"""Everything that the demo runs: agent, trace backend, prefill and decode server."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demo.agent import Agent
from demo.model import tiny_model
from demo.receiver import Receiver
from demo.servers import ROOT, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        with ExitStack() as parts:
            yield _start(directory, parts, say)
    except Exception:
        say(f"The logs of this run are in {directory}")
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, parts: ExitStack, say: Callable[[str], None]) -> Stack:
    receiver = None
    traces = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not traces:
        receiver = Receiver()
        receiver.start()
        parts.callback(receiver.stop)
        traces = receiver.endpoint
    agent = Agent(directory, otlp_endpoint=traces)
    parts.callback(agent.stop)
    agent.start()
    say(f"agent: metrics at http://{agent.http}/metrics, admin socket {agent.admin}")
    model = tiny_model(ROOT / ".cache" / "models")
    servers: list[Server] = []
    for spec in specs(agent.endpoint):
        server = Server(spec, model=model, logs=directory)
        parts.callback(server.stop)
        servers.append(server)
    for server in servers:
        server.wait_ready(say=say)
    return Stack(agent, traces, receiver, *servers)
