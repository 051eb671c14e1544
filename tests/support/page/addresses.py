"""Where the page of a running agent or relay is, and tokens for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import grpc
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from tests.support.agent.agent import AgentProcess
    from tests.support.agent.relay import RelayProcess

AUTHOR = "ada@shop"
"""Whom a token of the tests names."""


def page_of(agent: AgentProcess) -> str:
    """Return the address of an agent's page, without the slash at its end."""
    found = json.loads((agent.state_dir / "addresses.json").read_text())
    return str(found["page"]).rstrip("/")


def relay_page_of(relay: RelayProcess) -> str:
    """Return the address of a relay's page; its log has it."""
    records = [json.loads(line) for line in relay.log().splitlines() if line.startswith("{")]
    return next(str(each["page"]) for each in reversed(records) if "page" in each).rstrip("/")


def token_of(address: str, role: admin.PageRole = admin.PAGE_ROLE_UNSPECIFIED, author: str = AUTHOR) -> str:
    """Return a token for the page of the agent or relay whose admin service is at *address*."""
    with grpc.insecure_channel(address) as channel:
        request = admin.IssuePageTokenRequest(author=author, page_role=role)
        return str(AdminStub(channel).IssuePageToken(request, timeout=60).token)


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries a token."""
    return {"Authorization": f"Bearer {token}"}
