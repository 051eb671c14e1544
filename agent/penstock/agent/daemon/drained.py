"""What ``GET /drained`` answers: whether engines of this agent can be ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.calls import engines, requests
from penstock.agent.server.http_server import Drained
from penstock.agent.views import text
from penstock.agent.views.drain import drain_states, last_report
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext


async def drained(agent: AgentContext, name: str) -> Drained:
    """Return whether nothing is needed any more of the engines that *name* names.

    Args:
        agent: whose engines.
        name: an engine (``decode/0``), a server with all its engines, or empty for all engines of the agent.

    """
    known = (await engines.list_engines(agent, admin.ListEnginesRequest(without_counters=True))).engines
    chosen = [each for each in known if name in ("", each.key.server, text.engine(each.key))]
    if not chosen:
        return Drained(None, [f"there is no engine {name!r}" if name else "no engine is known"])
    holders = (await requests.list_holders(agent, admin.ListHoldersRequest())).holders
    now = agent.clock()
    states = drain_states(chosen, holders, known, lambda engine: now - last_report(engine) / 1e9)
    # Engines choose their names: a line stays a line.
    return Drained(
        all(each.drained for each in states), [text.printable(each.sentence(now)) for each in states]
    )
