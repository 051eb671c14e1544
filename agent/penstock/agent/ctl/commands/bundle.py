"""``agentctl export`` and ``import``: all policies as one document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.commands.apply import selector_of, with_all, with_change
from penstock.agent.ctl.commands.rollout_progress import show_fields, show_warnings
from penstock.agent.ctl.commands.rollout_wait import Followed, conclude, wait_for
from penstock.agent.ctl.manifest_files import read_paths
from penstock.agent.ctl.options import author, with_client, with_paths
from penstock.agent.ctl.render import say
from penstock.agent.ctl.render.json_values import as_json_values
from penstock.agent.ctl.render.output import say_document
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.client import Client


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Output format.",
)
@with_client
def export(client: Client, output: str) -> None:
    """Print all policies as one document for 'import' or 'apply'. Policies from files are omitted."""
    response = client.call("ExportPolicies", admin.ExportPoliciesRequest())
    document = json.loads(response.manifests_json)
    say_document(document, output)


@click.command("import")
@with_paths("Output of 'export', or manifests; - for standard input. May be repeated.")
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_all
@with_change
@with_client
def import_(
    client: Client,
    paths: tuple[str, ...],
    reason: str,
    everywhere: bool,
    dry_run: bool,
    wait: bool,
    allow_none: bool,
    timeout: timedelta,
    output: str,
) -> None:
    """Create or replace many policies in one change: all or none. Other policies are unchanged."""
    manifests = read_paths(paths)
    document = {"kind": "List", "items": [json.loads(item.text) for item in manifests]}
    request = admin.ImportPoliciesRequest(
        manifests_json=json.dumps(document), author=author(), dry_run=dry_run, reason=reason, all=everywhere
    )
    response = client.call("ImportPolicies", request)
    if output == "table":
        show_warnings(response)
        tail = " (dry run: nothing was changed)" if dry_run else ""
        for policy in response.policies:
            say(f"policy {policy.name} {policy.result}, generation {policy.generation}{tail}")
        if dry_run:
            show_fields(response)
    followed = Followed(as_json_values(response))
    if wait and not dry_run:
        # The agent skips expired policies.
        taken = {policy.name for policy in response.policies}
        followed = wait_for(
            client,
            response,
            {f"policy {item.name}": selector_of(item.text) for item in manifests if item.name in taken},
            timeout=timeout,
            output=output,
            allow_none=allow_none,
        )
    conclude([followed], output)
