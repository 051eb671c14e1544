"""``GetStatus``: version, state and problems of the agent."""

from __future__ import annotations

from contextlib import suppress
from shutil import disk_usage
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.events import read_in_thread
from penstock.agent.admin.lookups import timestamp_message
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.journal import Reader


async def get_status(agent: AgentContext, request: admin.GetStatusRequest) -> admin.AgentStatus:
    """Return version, state and problems of the agent; with ``try_backend``, also try to reach the trace backend."""

    def read(reader: Reader) -> tuple[int, int, int, int]:
        return reader.first(), reader.last(), _bytes(agent.state_dir), disk_usage(agent.state_dir).free

    first, last, state_bytes, free = await read_in_thread(agent, read)
    status = admin.AgentStatus(
        version=__version__,
        state_dir=str(agent.state_dir),
        state_bytes=state_bytes,
        disk_free_bytes=free,
        log_first=first,
        log_last=last,
        degraded=agent.journal.error,
        now=timestamp_message(int(agent.clock() * 1e9)),
    )
    for fill in agent.statuses:
        fill(status)
    if request.try_backend and status.otlp_endpoint and not status.otlp_error:
        # The exporter finds out only when it has a span to send.
        status.otlp_error = await agent.try_backend()
    return status


def _bytes(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        # SQLite may remove a file between listing and stat.
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
