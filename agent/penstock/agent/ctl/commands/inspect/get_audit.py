"""``agentctl get audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.name_arguments import POLICY
from penstock.agent.ctl.options import with_client
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.policies import audit_rows
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


@click.command()
@click.argument("name", type=POLICY, default="")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum rows.")
@with_listing
@with_client
def audit(client: Client, name: str, limit: int, style: ListStyle) -> None:
    """List the audit log, newest first: who changed what, when and why. With NAME: only its entries."""

    def fetch() -> Listing:
        response = client.call("ListAudit", admin.ListAuditRequest(name=name, limit=limit))
        return Listing(
            "audit",
            audit_rows(response.entries, current_time()),
            [str(item.id) for item in response.entries],
            lambda: as_json_values(response),
            "entries",
            "no changes yet",
            limited=True,
        )

    show_listing(fetch, style)
