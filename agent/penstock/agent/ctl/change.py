"""``agentctl apply`` and ``rollback``, and the options that all changes share."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.files import read_manifests
from penstock.agent.ctl.options import DURATION, author, with_client, with_output
from penstock.agent.ctl.output import show
from penstock.agent.ctl.progress import DEFAULT_TIMEOUT, show_change, wait_for
from penstock.agent.selector import Requirement, format_labels
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from penstock.agent.ctl.client import Client

F = TypeVar("F", bound="Callable[..., Any]")


def with_change(function: F) -> F:
    """Add ``--dry-run``, ``--wait``, ``--timeout`` and ``-o``."""
    options = (
        click.option("--dry-run", is_flag=True, help="Only show what would change, in which engine."),
        click.option("--wait", is_flag=True, help="Wait until every engine concerned has it in force."),
        click.option(
            "--timeout", type=DURATION, default=DEFAULT_TIMEOUT, help="How long --wait waits.  [default: 30s]"
        ),
        with_output("json", "yaml"),
    )
    for option in reversed(options):
        function = option(function)
    return function


with_all = click.option(
    "--all", "everywhere", is_flag=True, help="Confirm action fail with an empty selector."
)


def finish(
    client: Client,
    response: admin.ApplyPolicyResponse,
    selector: admin.EngineSelector,
    *,
    dry_run: bool,
    wait: bool,
    timeout: timedelta,
    output: str,
) -> None:
    """Print what a change did, and wait for it if that was asked."""
    waiting = wait and not dry_run
    if output == "table":
        show_change(response, dry_run=dry_run)
    elif not waiting:
        show(response, output)
    if waiting:
        wait_for(client, response, selector, timeout, output)


def selector_of(manifest_json: str) -> admin.EngineSelector:
    """Return the engines that a manifest which the agent has accepted selects."""
    selector = json.loads(manifest_json)["spec"].get("selector", {})
    requirements = [
        Requirement(key, "In", (value,)) for key, value in selector.get("matchLabels", {}).items()
    ]
    requirements += [
        Requirement(item["key"], item["operator"], tuple(item.get("values", ())))
        for item in selector.get("matchExpressions", ())
    ]
    return admin.EngineSelector(labels=format_labels(requirements), models=selector.get("models", ()))


def changed_engines(response: admin.ApplyPolicyResponse) -> admin.EngineSelector | None:
    """Return the engines that a change touched; None if it was none."""
    keys = [engine.key for engine in response.engines]
    return admin.EngineSelector(engines=keys) if keys else None


def apply_file(client: Client, stream: IO[str], *, everywhere: bool, dry_run: bool, **how: Any) -> None:
    """Apply all manifests of a file, in its order; ends at the first that is refused."""
    for manifest in read_manifests(stream, stream.name):
        request = admin.ApplyPolicyRequest(
            manifest_json=manifest, author=author(), dry_run=dry_run, all=everywhere
        )
        response = client.call("ApplyPolicy", request)
        finish(client, response, selector_of(manifest), dry_run=dry_run, **how)


@click.command()
@click.option(
    "--filename",
    "-f",
    "stream",
    type=click.File(),
    required=True,
    help="YAML or JSON; - reads standard input.",
)
@with_all
@with_change
@with_client
def apply(client: Client, stream: IO[str], **how: Any) -> None:
    """Create or replace policies from a file."""
    apply_file(client, stream, **how)


@click.command()
@click.argument("name")
@click.option(
    "--to-generation",
    type=click.IntRange(min=1),
    default=None,
    help="Which one ('agentctl get audit NAME' lists them).  [default: the one before the present]",
)
@click.option("--reason", default="", help="Why, for the audit log.")
@with_change
@with_client
def rollback(
    client: Client, name: str, to_generation: int | None, reason: str, dry_run: bool, **how: Any
) -> None:
    """Make an earlier content of policy NAME its new generation."""
    request = admin.RollbackPolicyRequest(
        name=name, to_generation=to_generation or 0, author=author(), reason=reason, dry_run=dry_run
    )
    response = client.call("RollbackPolicy", request)
    selector = changed_engines(response)
    how["wait"] = how["wait"] and selector is not None
    finish(client, response, selector or admin.EngineSelector(), dry_run=dry_run, **how)
