"""Changes of policies: ``agentctl rollback``, ``delete policy``, and what all changes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
from penstock.agent.ctl.delivery import (
    DEFAULT_TIMEOUT,
    Followed,
    change_name,
    conclude,
    show_change,
    wait_for,
)
from penstock.agent.ctl.options import DURATION, POLICY, author, fetch_policy, with_client
from penstock.agent.ctl.printing import with_output
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.policies import selector_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.ctl.connection.client import Client

F = TypeVar("F", bound="Callable[..., Any]")


def with_change(function: F) -> F:
    """Add ``--dry-run``, ``--wait``, ``--allow-none``, ``--timeout`` and ``-o``."""
    options = (
        click.option(
            "--dry-run", is_flag=True, help="Show what would change in each engine, and change nothing."
        ),
        click.option(
            "--wait",
            is_flag=True,
            help="Wait until every selected engine has it in force; exit with 1 if one does not.",
        ),
        click.option(
            "--allow-none",
            is_flag=True,
            help="Let --wait succeed if no connected engine matches the selector.",
        ),
        click.option(
            "--timeout", type=DURATION, default=DEFAULT_TIMEOUT, help="Time limit of --wait.  [default: 30s]"
        ),
        with_output(),
    )
    for option in reversed(options):
        function = option(function)
    return function


with_all = click.option(
    "--all", "everywhere", is_flag=True, help="Confirm that an empty selector means all engines."
)


with_if_generation = click.option(
    "--if-generation",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Only if the policy is at this generation; 0: only if it does not exist.",
)


def report_change(
    client: Client,
    response: admin.ApplyPolicyResponse,
    selector: admin.EngineSelector,
    *,
    dry_run: bool,
    wait: bool,
    output: str,
    **how: Any,
) -> None:
    """Print the result of a change, and follow its rollout if *wait*."""
    if output == "table":
        show_change(response, dry_run=dry_run)
    wait = wait and not dry_run
    conclude([follow_change(client, response, selector, wait=wait, output=output, **how)], output)


def follow_change(
    client: Client,
    response: admin.ApplyPolicyResponse,
    selector: admin.EngineSelector,
    *,
    wait: bool,
    **how: Any,
) -> Followed:
    """Follow the rollout of a change if *wait*."""
    if wait:
        return wait_for(client, response, {change_name(response): selector}, **how)
    return Followed(as_json_values(response))


def changed_engines(response: admin.ApplyPolicyResponse) -> admin.EngineSelector | None:
    """Return a selector of the engines that a change touched; None for none."""
    keys = [engine.key for engine in response.engines]
    return admin.EngineSelector(engines=keys) if keys else None


@click.command()
@click.argument("name", type=POLICY)
@click.option(
    "--to-generation",
    type=click.IntRange(min=1),
    default=None,
    help="The generation ('agentctl get audit NAME' lists them).  [default: the previous one]",
)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_change
@with_client
def rollback(
    client: Client, name: str, to_generation: int | None, reason: str, dry_run: bool, **how: Any
) -> None:
    """Roll back policy NAME to an earlier revision."""
    request = admin.RollbackPolicyRequest(
        name=name, to_generation=to_generation or 0, author=author(), reason=reason, dry_run=dry_run
    )
    response = client.call("RollbackPolicy", request)
    selector = admin.EngineSelector()
    if how["wait"] and not dry_run:
        present = fetch_policy(client, name)
        selector = selector_of(present.manifest_json)
    report_change(client, response, selector, dry_run=dry_run, **how)


@click.command("policy")
@click.argument("name", type=POLICY)
@click.option("--reason", default="", help="Reason, for the audit log.")
@with_if_generation
@with_change
@with_client
def delete_policy(
    client: Client, name: str, reason: str, if_generation: int | None, dry_run: bool, **how: Any
) -> None:
    """Delete policy NAME; 'agentctl rollback NAME' restores it."""
    request = admin.DeletePolicyRequest(
        name=name, author=author(), reason=reason, if_generation=if_generation, dry_run=dry_run
    )
    response = client.call("DeletePolicy", request)
    selector = changed_engines(response)
    how["wait"] = how["wait"] and selector is not None
    report_change(client, response, selector or admin.EngineSelector(), dry_run=dry_run, **how)
