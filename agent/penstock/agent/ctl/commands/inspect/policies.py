"""``agentctl get policy``, ``describe policy`` and ``get audit``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import ENGINE, POLICY, engine_selector, fetch_policy, with_client
from penstock.agent.ctl.output import say_document, say_lines, show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.policies import (
    audit_rows,
    manifest_of,
    policy_description,
    policy_rows,
    selector_of,
)
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey

# The owner of policies that are set over the wire.
_BY_HAND = "imperative"


_ENTRIES = 5

_INDENT = "  "


@click.command()
@click.argument("names", type=POLICY, nargs=-1, metavar="[NAME]...")
@click.option("--effective", "engine", type=ENGINE, help="The merge of all policies in this engine.")
@click.option("--by-hand", is_flag=True, help="Only policies that 'apply' may change: not those of files.")
@with_listing
@with_client
def policy(
    client: Client, names: tuple[str, ...], engine: EngineKey | None, by_hand: bool, style: ListStyle
) -> None:
    """List policies, or those that are named. -o yaml prints manifests for 'apply'."""
    if engine is None:
        show_listing(lambda: _listing(client, names, by_hand=by_hand), style)
        return
    if names:
        raise UsageError("--effective shows the merge of all policies; omit NAME")
    if style.watch or style.output == "name":
        raise UsageError("--effective shows one merge; omit --watch and -o name")
    _show_effective(client, engine, style)


def _listing(client: Client, names: tuple[str, ...], *, by_hand: bool) -> Listing:
    response = client.call("ListPolicies", admin.ListPoliciesRequest())
    now = current_time()
    found = [
        item
        for item in response.policies
        if (not names or item.name in names) and (not by_hand or _is_editable(item, now))
    ]
    return Listing(
        "policy",
        policy_rows(found, now),
        [item.name for item in found],
        lambda: {"apiVersion": "v1", "kind": "List", "items": [manifest_of(item) for item in found]},
        "items",
        "no policies; vLLM's own configuration is in force",
        missing=[
            f"policy {name!r} not found; 'agentctl get policy' lists them"
            for name in names
            if all(item.name != name for item in found)
        ],
        single=len(names) == 1,
        manifests=True,
    )


def _is_editable(item: admin.Policy, now: float) -> bool:
    """Return whether 'apply' takes the policy: it is not of a file, and not expired."""
    expires = json.loads(item.manifest_json)["spec"].get("expiresAt", "")
    return item.owner == _BY_HAND and not (expires and datetime.fromisoformat(expires).timestamp() <= now)


def _show_effective(client: Client, engine: EngineKey, style: ListStyle) -> None:
    key = EngineKeyMessage(server=engine.server, engine=engine.engine)
    effective = client.call("GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=key))
    if not style.is_table:
        show(effective, style.output)
        return
    if not effective.fields:
        say(f"no policy selects engine {engine}; vLLM's own configuration is in force", err=True)
    else:
        names = {policy.name: text.short_policies([policy], "") for policy in effective.policies}
        rows = [
            (field.field, field.new_value, names.get(field.new_policy, field.new_policy))
            for field in effective.fields
        ]
        say_lines([*([("FIELD", "VALUE", "POLICY")] if style.headers else []), *rows])
    _show_standing(client, engine)
    now = current_time()
    for step in effective.schedule[1:]:
        say(f"{text.ago_of(step.begins, now)}: {text.policies(step.policies, step.hash)} {step.spec_json}")


def _show_standing(client: Client, engine: EngineKey) -> None:
    """Warn on stderr if the policy shown is not in force in the engine."""
    request = admin.ListEnginesRequest(selector=engine_selector(engines=[engine]))
    for item in client.call("ListEngines", request).engines:
        if item.in_sync or not item.connected:
            continue
        said = (
            f"engine {engine} is {text.paused(text.policies(item.wanted_policies, item.wanted_hash))}; "
            f"'agentctl resume {engine}' puts this in force"
            if item.paused
            else f"this is not in force in engine {engine}; see 'agentctl describe engine {engine}'"
        )
        say(text.style(said, "yellow"), err=True)


@click.command("policy")
@click.argument("name", type=POLICY)
@with_output()
@with_client
def describe_policy(client: Client, name: str, output: str) -> None:
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
