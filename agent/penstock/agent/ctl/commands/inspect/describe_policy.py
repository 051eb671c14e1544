"""``agentctl describe policy``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.commands.inspect.get_policy import (
    expiry_words,
    in_force_words,
    manifest_of,
    selector_words,
    share_of,
)
from penstock.agent.ctl.name_arguments import POLICY
from penstock.agent.ctl.one_policy import fetch_policy
from penstock.agent.ctl.options import selector_of, with_client
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.formats import with_output
from penstock.agent.ctl.printing.output import say_document, table
from penstock.agent.views import engines as rows
from penstock.agent.views import text as words
from penstock.agent.views.field_diff import flat_values
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.ctl.connection.client import Client

_ENTRIES = 5
_INDENT = "  "
_LEFT_OUT = "without it: the rollout leaves it out"
# Shown in lines of their own.
_NOT_SET = ("selector.", "rollout.", "priority", "mode", "expiresAt")


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
        say(*description(item, engines, entries, current_time()))
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


def description(
    item: admin.Policy, engines: Iterable[admin.Engine], entries: Iterable[admin.AuditEntry], now: float
) -> Iterator[str]:
    """Yield the lines of a description."""
    manifest = json.loads(item.manifest_json)
    spec = manifest["spec"]
    yield f"Policy: {item.name}"
    yield f"Generation: {item.generation}"
    yield f"Changed: {words.ago_of(item.changed, now)} by {item.author or 'unknown'}"
    yield f"Owner: {item.owner}"
    yield f"Priority: {spec.get('priority', 100)}"
    yield f"Mode: {spec.get('mode', 'enforce')}"
    yield f"Selector: {selector_words(item.manifest_json)}"
    percent = share_of(item.manifest_json)
    if percent is not None:
        here = f"{item.engines_selected} of {item.engines_matched} here"
        if "candidate" in spec["rollout"]:
            yield f"Rollout: of its candidate, {percent} % of the engines"
        else:
            yield f"Rollout: {percent} % of the engines: {here}"
    yield f"Expires: {expiry_words(spec.get('expiresAt', ''), now)}"
    annotations = manifest["metadata"].get("annotations", {})
    yield from _section("Annotations", (f"{key}={value}" for key, value in sorted(annotations.items())))
    fields = (f"{path} = {value}" for path, value in flat_values(spec) if not path.startswith(_NOT_SET))
    yield from _section("Sets", fields)
    yield f"In force: {in_force_words(item)} engines"
    standings = (
        f"{words.engine(engine.key)}: {_LEFT_OUT if _left_out(item, engine) else _standing(engine)}"
        for engine in engines
    )
    yield from _section("Engines", standings)
    history = rows.audit(entries, now).narrow()
    if history.rows:
        yield from _section("Audit", table(history.headers, history.rows).splitlines())


def _left_out(item: admin.Policy, engine: admin.Engine) -> bool:
    partial = item.engines_selected < item.engines_matched
    return partial and all(policy.name != item.name for policy in engine.wanted_policies)


def _standing(engine: admin.Engine) -> str:
    if rows.is_stopped(engine):
        return words.style("stopped; applied when it starts", "yellow")
    if not engine.connected:
        return words.style("disconnected; applied when it reconnects", "red")
    if engine.paused:
        return words.style(words.paused(words.policies(engine.wanted_policies, engine.wanted_hash)), "yellow")
    return words.style("in force", "green") if engine.in_sync else words.style("not in force yet", "yellow")


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"{title}:"
        yield from (_INDENT + line for line in found)
