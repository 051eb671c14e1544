"""What every demo begins with: a directory for its files, and an agent with a trace backend."""

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
class Watch:
    """An agent and where its spans go.

    Attributes:
        traces: the receiver's own endpoint unless one was given.
        receiver: None where OTEL_EXPORTER_OTLP_ENDPOINT names somebody else's.

    """

    agent: Agent
    traces: str
    receiver: Receiver | None


@contextmanager
def run_directory(say: Callable[[str], None]) -> Iterator[tuple[Path, ExitStack]]:
    """Make a directory for a run's files (sockets, state, logs), and what ends the run's parts before it goes.

    The files are removed unless the run fails.
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


def start_watch(directory: Path, parts: ExitStack, say: Callable[[str], None]) -> Watch:
    """Start an agent and, unless one was named, a backend; *parts* ends them.

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
    return Watch(agent, traces, receiver)
