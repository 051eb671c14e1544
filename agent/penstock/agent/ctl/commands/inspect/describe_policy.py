"""``agentctl describe policy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.name_arguments import POLICY
from penstock.agent.ctl.one_policy import fetch_policy
from penstock.agent.ctl.options import with_client
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.formats import with_output
from penstock.agent.ctl.printing.output import say_document
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.policies import manifest_of, policy_description, selector_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client

_ENTRIES = 5
_INDENT = "  "


@click.command()
@click.argument("name", type=POLICY)
@with_output()
@with_client
def policy(client: Client, name: str, output: str) -> None:
    """Show policy NAME: what it sets, in which engines it is in force, who changed it last and why."""
    item = fetch_policy(client, name)
    selected = admin.ListEnginesRequest(selector=selector_of(item.manifest_json))
    engines = client.call("ListEngines", selected).engines
    entries = client.call("ListAudit", admin.ListAuditRequest(name=name, limit=_ENTRIES)).entries
    if output == "table":
        say(*policy_description(item, engines, entries, current_time()))
        return
    standing = [
        {
            "key": as_json_values(engine.key),
            "connected": engine.connected,
            "paused": engine.paused,
            "inSync": engine.in_sync,
        }
        for engine in engines
    ]
    audit = [as_json_values(entry) for entry in entries]
    say_document({"policy": manifest_of(item), "engines": standing, "audit": audit}, output)
