"""``IssuePageToken``: the page's address, with who opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext
    from penstock.proto.v1 import admin_pb2 as admin


async def issue_page_token(
    agent: AgentContext, request: admin.IssuePageTokenRequest
) -> admin.IssuePageTokenResponse:
    """Return the page's address and a token for the caller, whose name and role the request has by now."""
    return agent.page.issue(request)
