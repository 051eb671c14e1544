"""``agentctl version``."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click
from penstock.agent.ctl.console import say
from penstock.agent.ctl.formats import is_table, with_output
from penstock.agent.ctl.options import open_client, with_place
from penstock.agent.ctl.output import say_document
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.version import __version__


@click.command()
@click.option("--client", "client_only", is_flag=True, help="Only the version of agentctl; asks no agent.")
@with_output()
@with_place
@click.pass_context
def version(context: click.Context, /, client_only: bool, output: str, **_: Any) -> None:
    """Print the versions of agentctl and of the agent."""
    versions = {"clientVersion": __version__}
    if is_table(output):
        say(f"Client version: {__version__}")
    if not client_only:
        with closing(open_client(context)) as client:
            versions["agentVersion"] = client.call("GetStatus", admin.GetStatusRequest()).version
        if is_table(output):
            say(f"Agent version: {versions['agentVersion']}")
    if not is_table(output):
        say_document(versions, output)
