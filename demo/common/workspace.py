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
from demo.common.interrupts import held
from demo.common.last_words import Machine, advice, excerpt, troubled
from demo.common.otlp_receiver import Receiver
from demo.common.processes import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A failed step names no log, and several may have something to say.
_MOST_EXCERPTS = 3
_EXCERPT_LINES = 4


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
def run_directory() -> Iterator[tuple[Path, ExitStack]]:
    """Yield a directory for a run's files (sockets, state, logs) and a stack that stops the run's processes.

    Removes the files, also after a signal, unless the run fails: then the error's notes say what the logs say, what to try,
    and where the files are.
    """
    directory = Path()
    try:
        with held():
            directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        with ExitStack() as parts:
            try:
                yield directory, parts
            except Exception as error:
                # Now: a process that is stopped writes more errors.
                error.add_note(_what_to_know(directory, str(error)))
                raise
    except KeyboardInterrupt:
        _remove(directory)
        raise
    with held():
        _remove(directory)


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


def _remove(directory: Path) -> None:
    if directory != Path():
        shutil.rmtree(directory, ignore_errors=True)


def _what_to_know(directory: Path, said: str) -> str:
    """Return the end of the last words: the logs that *said* does not quote, what to try, the directory."""
    logs = sorted(directory.glob("**/*.log"), key=lambda log: log.stat().st_mtime)
    lines = []
    if not any(str(log) in said for log in logs):
        chosen = (troubled(logs) or logs)[-_MOST_EXCERPTS:]
        lines += [excerpt(log, _EXCERPT_LINES) for log in chosen]
    codes = [child.code for child in children() if child.code is not None]
    lines += ["Try:", *(f"  - {tip}" for tip in advice(Machine.now(), codes))]
    lines.append(f"The logs of this run stay in {directory}; remove it when you have read them.")
    return "\n".join(lines)
