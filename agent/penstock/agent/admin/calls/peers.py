"""The call about peers, as lists see them and as the judge does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from penstock.agent.admin.calls.diagnoses import judgement
from penstock.agent.admin.calls.engines import peer_sources, retired_before
from penstock.agent.admin.lookups import listed_peers
from penstock.agent.errors import ContractError

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext
    from penstock.proto.v1 import admin_pb2 as admin

_log = structlog.get_logger(__name__)

_PEER_STATES = ("", "active", "retired", "all")


async def list_peers(agent: AgentContext, request: admin.ListPeersRequest) -> admin.ListPeersResponse:
    """Return the peers of the selected engines, with what is wrong now first: as far as seen, and as the judge says."""
    if request.state not in _PEER_STATES:
        raise ContractError(f"state is {request.state!r}; give active, retired or all; the default is active")
    if bool(request.most_peers) != bool(request.most_engines) or (request.most_peers and request.limit):
        raise ContractError(
            "a table of the worst has most_peers and most_engines, and no limit; give both, or none"
        )
    diagnosis = await _judgement(agent)
    views, roles = agent.registry.engines(), agent.registry.roles
    here = [view.key for view in views if view.connected]
    away = [view.key for view in views if not view.connected]
    sources = replace(
        peer_sources(agent, request.selector),
        diagnosis=diagnosis,
        here={key: roles.address(key) for key in here},
        away={key: roles.address(key) for key in away},
        encoders_here={key: roles.encoder_address(key) for key in here},
        encoders_away={key: roles.encoder_address(key) for key in away},
    )
    # Many peers take longer than the loop may stand still.
    return await asyncio.to_thread(listed_peers, sources, request, retired_before(agent))


async def _judgement(agent: AgentContext) -> admin.Diagnosis | None:
    try:
        return await judgement(agent)
    except Exception:  # noqa: BLE001  (a rule that raises must not take the list away)
        _log.exception("the conditions of peers cannot be judged; please report it")
        return None
