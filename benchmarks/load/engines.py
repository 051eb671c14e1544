"""Real vLLM engines for benchmarks: all run at once, one at a time is under load."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.common.model import tiny_model
from demo.servers import ROOT, Server, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import ExitStack

    from demo.common.agent import Agent

MODULE: Final = "tests.support.engine.forced_server"
VARIANT: Final = {"FORCED_VARIANT": "uni"}
"""Production's defaults: scheduler and worker in one process, asynchronous scheduling. Nothing in it waits by polling, so the
demo's slower polling (decision 0006), which this module has too, changes nothing here."""

_SETTLE_SECONDS: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def start_servers(
    specs: Iterable[ServerSpec], logs: Path, parts: ExitStack, say: Callable[[str], None] = lambda _: None
) -> dict[str, Server]:
    """Start servers of the tiny model, wait until all are ready, and return them by name; *parts* stops them."""
    model = tiny_model(ROOT / ".cache" / "models")
    servers: dict[str, Server] = {}
    for spec in specs:
        servers[spec.name] = Server(spec, model=model, logs=logs)
        parts.callback(servers[spec.name].stop)
    for server in servers.values():
        server.wait_ready(say=say)
    return servers


def cpu_seconds(server: Server) -> float:
    """Return the CPU seconds of all processes of a server, which are one process group."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        fields = _stat(process)
        if fields and int(fields[2]) == server.child.pid:
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


@contextmanager
def idle_priority(*processes: int) -> Iterator[None]:
    """Run processes with SCHED_IDLE, as if they had cores of their own; restore their policy at the end."""
    _schedule(processes, os.SCHED_IDLE)
    try:
        yield
    finally:
        _schedule(processes, os.SCHED_OTHER)


def _schedule(processes: Iterable[int], policy: int) -> None:
    for process in processes:
        # A new thread takes after the one that starts it.
        for task in Path(f"/proc/{process}/task").glob("[0-9]*"):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(task.name), policy, os.sched_param(0))


def pids(server: Server) -> Mapping[int, str]:
    """Return the processes of a server with their names."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        fields = _stat(process)
        if fields and int(fields[2]) == server.child.pid:
            found[int(process.name)] = process.joinpath("comm").read_text().strip()
    return found


def _stat(process: Path) -> list[str]:
    """Return what comes after the command, which is in brackets: state, parent, group and so on; nothing if it has ended."""
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def agent_counts(agent: Agent) -> tuple[int, int]:
    """Return the numbers of requests counted and of entries reported lost by the agent."""
    metrics = agent.metrics()
    return (
        int(metrics.value("penstock_events_total", kind="request_closed")),
        int(metrics.value("penstock_events_dropped_total")),
    )


def wait_for_counts(agent: Agent, requests: int) -> tuple[int, int]:
    """Return :func:`agent_counts` once it accounts for *requests*, or after a minute."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while sum(now := agent_counts(agent)) < requests and time.monotonic() < deadline:
        time.sleep(0.1)
    return now
