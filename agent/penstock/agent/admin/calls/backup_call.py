"""``Backup``: a copy of the state on the agent's host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.backup import back_up
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.admin.support import AgentContext


async def backup(agent: AgentContext, request: admin.BackupRequest) -> admin.BackupResponse:
    """Write the backup; answers when it is complete, or was given up because the agent stops."""
    agent.journal.whereabouts.require_in_place()
    size = await asyncio.to_thread(back_up, agent.state_dir, Path(request.path), agent.stopping.is_set)
    return admin.BackupResponse(path=request.path, bytes=size)
