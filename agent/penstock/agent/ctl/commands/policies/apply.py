"""Policies from files: ``agentctl apply``, and the older ``export`` and ``import``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.policies.change import (
    apply_files,
    with_all,
    with_change,
    with_if_generation,
)
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.formats import with_document_output
from penstock.agent.ctl.manifest_files import read_paths
from penstock.agent.ctl.options import author, selector_of, with_client, with_paths
from penstock.agent.ctl.render import say
from penstock.agent.ctl.render.json_values import as_json_values
from penstock.agent.ctl.render.output import say_document
from penstock.agent.ctl.rollout import Followed, conclude, show_fields, show_warnings, wait_for
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.client import Client


@click.command()
@with_paths("YAML or JSON file, directory, or - for standard input. May be repeated.")
@with_if_generation
@click.option("--atomic", is_flag=True, help="Change all policies at once, or none; the rollout is one, too.")
@with_all
@with_change
@with_client
def apply(
    client: Client, paths: tuple[str, ...], if_generation: int | None, atomic: bool, **how: Any
) -> None:
    """Create or replace policies from files or directories. All are checked before the first is applied."""
    if not atomic:
        apply_files(client, paths, if_generation=if_generation, **how)
        return
    if if_generation is not None:
        raise UsageError("--if-generation takes one policy; omit --atomic")
    apply_bundle(client, paths, **how)


@click.command()
@with_document_output
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
def import_(client: Client, paths: tuple[str, ...], **how: Any) -> None:
    """Create or replace many policies in one change: all or none. Other policies are unchanged."""
    apply_bundle(client, paths, **how)


def apply_bundle(
    client: Client,
    paths: tuple[str, ...],
    *,
    everywhere: bool,
    dry_run: bool,
    wait: bool,
    allow_none: bool,
    timeout: timedelta,
    output: str,
    reason: str = "",
) -> None:
    """Apply the manifests of files and directories as one change."""
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
