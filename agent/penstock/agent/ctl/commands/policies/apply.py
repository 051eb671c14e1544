"""Policies from files: ``agentctl apply``, and the older ``export`` and ``import``."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.policies.change import (
    follow_change,
    with_all,
    with_change,
    with_if_generation,
)
from penstock.agent.ctl.delivery import (
    Followed,
    conclude,
    show_change,
    show_fields,
    show_shares,
    show_warnings,
    time_left,
    wait_for,
)
from penstock.agent.ctl.errors import UnreachableError, UsageError
from penstock.agent.ctl.manifest_files import ManifestText, read_paths
from penstock.agent.ctl.options import author, with_client, with_paths
from penstock.agent.ctl.output import say_document
from penstock.agent.ctl.printing import say, with_document_output
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.policies import selector_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client


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
        show_shares(response)
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


def apply_files(
    client: Client,
    paths: Sequence[str],
    *,
    everywhere: bool,
    if_generation: int | None,
    dry_run: bool,
    wait: bool,
    timeout: timedelta,
    output: str,
    allow_none: bool,
) -> None:
    """Apply the manifests of files and directories in order, after a dry run of all of them."""
    manifests = read_paths(paths)
    if if_generation is not None and len(manifests) > 1:
        raise UsageError(f"--if-generation takes one policy, not {len(manifests)}")

    how_sent: dict[str, Any] = {"if_generation": if_generation, "everywhere": everywhere}
    if len(manifests) > 1 and not dry_run:
        for manifest in manifests:
            _send(client, manifest, "; nothing was applied", dry_run=True, **how_sent)
    responses: list[admin.ApplyPolicyResponse] = []
    for manifest in manifests:
        # Another change may come between the dry run and this call.
        so_far = f"; applied before it: {', '.join(item.name for item in responses)}" if responses else ""
        responses.append(_send(client, manifest, "" if dry_run else so_far, dry_run=dry_run, **how_sent))
    if output == "table":
        for response in responses:
            show_change(response, dry_run=dry_run)
    # All are applied before the first wait.
    end = time.monotonic() + timeout.total_seconds()
    followed = [
        follow_change(
            client,
            response,
            selector_of(manifest.text),
            wait=wait and not dry_run,
            timeout=time_left(end),
            output=output,
            allow_none=allow_none,
        )
        for manifest, response in zip(manifests, responses, strict=True)
    ]
    conclude(followed, output)


def _send(
    client: Client,
    manifest: ManifestText,
    so_far: str,
    *,
    dry_run: bool,
    if_generation: int | None,
    everywhere: bool,
) -> admin.ApplyPolicyResponse:
    """Apply one manifest; an error names its file and ends with *so_far*."""
    request = admin.ApplyPolicyRequest(
        manifest_json=manifest.text,
        author=author(),
        dry_run=dry_run,
        if_generation=if_generation,
        all=everywhere,
    )
    try:
        response: admin.ApplyPolicyResponse = client.call("ApplyPolicy", request)
    except UnreachableError as error:
        raise UnreachableError(error.message + so_far) from None
    except click.ClickException as error:
        raise type(error)(f"{manifest.where}: {error.message}{so_far}") from None
    return response
