"""``agentctl set-policy``: sets fields of one policy by flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.policies.apply import apply_files
from penstock.agent.ctl.commands.policies.change import (
    report_change,
    with_all,
    with_change,
    with_if_generation,
)
from penstock.agent.ctl.commands.policies.fields import set_fields, unset_fields, with_fields
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.options import DURATION, POLICY, SELECTOR, author, with_client, with_paths
from penstock.agent.parsing import parse_labels
from penstock.agent.views.policies import selector_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

_REASON = "penstock.dev/reason"


@click.command("set-policy")
@click.argument("name", type=POLICY, required=False)
@with_paths("Read the policy from a file instead, as apply does; - for standard input.", required=False)
@with_fields
@click.option(
    "--selector", "-l", type=SELECTOR, help="Select engines by label: role=decode,tier in (a,b),!canary."
)
@click.option("--model", "models", multiple=True, metavar="GLOB", help="Select engines by model: llama-*.")
@click.option(
    "--rollout-percent",
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="Select this share of those engines, by a hash of engine and policy; a larger one adds engines.",
)
@click.option("--priority", type=int, help="Higher wins, field by field.  [default: 100]")
@click.option(
    "--mode", type=click.Choice(["enforce", "observe"]), help="observe: decide and report, change nothing."
)
@click.option("--ttl", type=DURATION, help="Time to live; required and at most 4h from priority 900.")
@click.option(
    "--unset",
    multiple=True,
    metavar="FIELD",
    help="Remove a field, such as kvLoadFailure.maxRecomputeTokens, deferral or expiresAt.",
)
@click.option("--reason", help="Reason, for the audit log.")
@with_if_generation
@with_all
@with_change
@with_client
def set_policy(
    client: Client,
    name: str | None,
    paths: tuple[str, ...],
    if_generation: int | None,
    everywhere: bool,
    dry_run: bool,
    wait: bool,
    allow_none: bool,
    timeout: timedelta,
    output: str,
    **fields: Any,
) -> None:
    """Set fields of policy NAME; creates it if it does not exist. Unset fields are unchanged."""
    how: dict[str, Any] = {
        "dry_run": dry_run, "wait": wait, "allow_none": allow_none, "timeout": timeout, "output": output,
    }  # fmt: skip
    given = [option for option, value in fields.items() if value not in (None, ())]
    if paths:
        if name or given:
            raise UsageError("-f reads the whole policy; omit NAME and the field flags")
        apply_files(client, paths, everywhere=everywhere, if_generation=if_generation, **how)
        return
    if not name:
        raise UsageError("NAME is missing; write agentctl set-policy NAME --kv-load-failure recompute")
    if not given:
        raise UsageError("nothing to set; give a flag such as --kv-load-failure recompute")
    present = _present(client, name)
    generation = present.generation if present is not None else 0
    manifest = json.dumps(_patched(client, name, present, **fields))
    request = admin.ApplyPolicyRequest(
        manifest_json=manifest,
        author=author(),
        dry_run=dry_run,
        # Replace only the revision that was patched.
        if_generation=if_generation if if_generation is not None else generation,
        all=everywhere,
    )
    response = client.call("ApplyPolicy", request)
    report_change(client, response, selector_of(manifest), **how)


def _present(client: Client, name: str) -> admin.Policy | None:
    response: admin.ListPoliciesResponse = client.call("ListPolicies", admin.ListPoliciesRequest())
    return next((policy for policy in response.policies if policy.name == name), None)


def _patched(
    client: Client,
    name: str,
    present: admin.Policy | None,
    *,
    selector: str | None,
    models: tuple[str, ...],
    rollout_percent: int | None,
    priority: int | None,
    mode: str | None,
    ttl: timedelta | None,
    unset: tuple[str, ...],
    reason: str | None,
    **fields: Any,
) -> dict[str, Any]:
    manifest: dict[str, Any] = (
        json.loads(present.manifest_json)
        if present is not None
        else {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name},
            "spec": {},
        }
    )
    spec = manifest["spec"]
    # The old reason does not apply to this change.
    annotations = manifest["metadata"].pop("annotations", {})
    annotations.pop(_REASON, None)
    if reason:
        annotations[_REASON] = reason
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    try:
        unset_fields(spec, unset)
    except ValueError as error:
        raise UsageError(f"--unset {error}") from None
    set_fields(spec, fields)
    if selector is not None:
        kept = {"models": spec["selector"]["models"]} if "models" in spec.get("selector", {}) else {}
        spec["selector"] = kept | _selector(selector)
    if models:
        spec.setdefault("selector", {})["models"] = list(models)
    if rollout_percent is not None:
        spec["rollout"] = {"percent": rollout_percent}
    spec |= {key: value for key, value in (("priority", priority), ("mode", mode)) if value is not None}
    if ttl is not None:
        # Expiry runs by the agent's clock.
        now = client.call("GetStatus", admin.GetStatusRequest()).now.ToDatetime()
        spec["expiresAt"] = f"{(now + ttl).isoformat(timespec='seconds')}Z"
    return manifest


def _selector(text: str) -> dict[str, Any]:
    selector: dict[str, Any] = {}
    for requirement in parse_labels(text):
        labels = selector.get("matchLabels", {})
        if requirement.operator == "In" and len(requirement.values) == 1 and requirement.key not in labels:
            selector["matchLabels"] = labels | {requirement.key: requirement.values[0]}
            continue
        expression: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
        if requirement.values:
            expression["values"] = list(requirement.values)
        selector.setdefault("matchExpressions", []).append(expression)
    return selector
