"""A run's directory, and an agent with a trace backend."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demo.common.agent import Agent
from demo.common.otlp_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class AgentAndTraces:
    """An agent and the backend of its spans.

    Attributes:
        traces: the OTLP endpoint that spans are exported to.
        receiver: the demo's own backend; None if OTEL_EXPORTER_OTLP_ENDPOINT is set.

    """

    agent: Agent
    traces: str
    receiver: Receiver | None


@contextmanager
def run_directory(say: Callable[[str], None]) -> Iterator[tuple[Path, ExitStack]]:
    """Yield a directory for a run's files (sockets, state, logs) and a stack that stops the run's processes.

    Removes the files unless the run fails.
    """
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        with ExitStack() as parts:
            yield directory, parts
    except Exception:
        say(f"The logs of this run are in {directory}")
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)


def start_agent(directory: Path, parts: ExitStack, say: Callable[[str], None]) -> AgentAndTraces:
    """Start an agent and, unless OTEL_EXPORTER_OTLP_ENDPOINT is set, a trace backend; *parts* stops them.

    Raises:
        ChildError: the agent did not start.

    """
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
    return AgentAndTraces(agent, traces, receiver)
