"""``agentctl delete``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.apply import changed_engines, finish, with_change, with_if_generation
from penstock.agent.ctl.name_arguments import POLICY
from penstock.agent.ctl.options import author, with_client
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.client import Client


@click.command()
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Why, for the audit log.")
@with_if_generation
@with_change
@with_client
def policy(
    client: Client, name: str, reason: str, if_generation: int | None, dry_run: bool, **how: Any
) -> None:
    """Delete policy NAME; 'agentctl rollback NAME' brings it back."""
    request = admin.DeletePolicyRequest(
        name=name, author=author(), reason=reason, if_generation=if_generation, dry_run=dry_run
    )
    response = client.call("DeletePolicy", request)
    selector = changed_engines(response)
    how["wait"] = how["wait"] and selector is not None
    finish(client, response, selector or admin.EngineSelector(), dry_run=dry_run, **how)
