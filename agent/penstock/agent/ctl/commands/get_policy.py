"""``agentctl get policy``."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.apply import selector_of
from penstock.agent.ctl.commands.get import show_table
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.name_arguments import ENGINE, POLICY
from penstock.agent.ctl.options import engine_selector, with_client, with_output
from penstock.agent.ctl.render import say
from penstock.agent.ctl.render import text as words
from penstock.agent.ctl.render.json_values import as_json_values
from penstock.agent.ctl.render.output import say_document, say_documents, say_table, show
from penstock.agent.ctl.render.rows import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

if TYPE_CHECKING:
    from penstock.agent.ctl.client import Client
    from penstock.agent.model import EngineKey

_REASON = "penstock.dev/reason"
_NOT_SET = frozenset({"selector", "priority", "expiresAt", "mode"})


@click.command()
@click.argument("name", type=POLICY, default="")
@click.option("--effective", "engine", type=ENGINE, help="The merge of all policies in this engine.")
@with_output(wide=True)
@with_client
def policy(client: Client, name: str, engine: EngineKey | None, output: str) -> None:
    """List policies, or policy NAME. -o yaml prints manifests for 'apply'."""
    if engine is not None:
        if name:
            raise UsageError("--effective shows the merge of all policies; omit NAME")
        _show_effective(client, engine, output)
        return
    response = client.call("ListPolicies", admin.ListPoliciesRequest(name=name))
    if output in {"json", "yaml"}:
        _show_manifests([_manifest(item) for item in response.policies], output, single=bool(name))
        return
    found = policies(response.policies, time.time())
    show_table(response, found, output, "no policies; vLLM's own configuration is in force")


def policies(items: list[admin.Policy], now: float) -> Table:
    """List policies."""
    rows: list[tuple[str, ...]] = []
    for item in items:
        manifest = json.loads(item.manifest_json)
        spec = manifest["spec"]
        expires = spec.get("expiresAt", "")
        reason = manifest["metadata"].get("annotations", {}).get(_REASON, "")
        rows.append(
            (
                item.name,
                str(spec.get("priority", 100)),
                spec.get("mode", "enforce"),
                _selector_words(item.manifest_json),
                ",".join(f"{path}={value}" for path, value in _leaves(spec, "")),
                _in_force(item),
                _expiry(expires, now),
                words.ago_of(item.changed, now).removesuffix(" ago"),
                str(item.generation),
                item.author or words.NONE,
                item.owner,
                words.one_line(reason) or words.NONE,
            )
        )
    headers = (
        "NAME", "PRIORITY", "MODE", "SELECTOR", "SETS", "IN-FORCE", "EXPIRES", "AGE",
        "GENERATION", "AUTHOR", "OWNER", "REASON",
    )  # fmt: skip
    return Table(headers, rows, wide=4)


def _show_effective(client: Client, engine: EngineKey, output: str) -> None:
    key = EngineKeyMessage(server=engine.server, engine=engine.engine)
    effective = client.call("GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=key))
    if output in {"json", "yaml"}:
        show(effective, output)
        return
    if not effective.fields:
        say(f"no policy selects engine {engine}; vLLM's own configuration is in force", err=True)
    else:
        names = {policy.name: words.short_policies([policy], "") for policy in effective.policies}
        rows = [
            (field.field, field.new_value, names.get(field.new_policy, field.new_policy))
            for field in effective.fields
        ]
        say_table(("FIELD", "VALUE", "POLICY"), rows)
    _show_standing(client, engine)
    now = time.time()
    for step in effective.schedule[1:]:
        say(f"{words.ago_of(step.begins, now)}: {words.policies(step.policies, step.hash)} {step.spec_json}")


def _show_standing(client: Client, engine: EngineKey) -> None:
    """Warn on stderr if the policy shown is not in force in the engine."""
    request = admin.ListEnginesRequest(selector=engine_selector(engines=[engine]))
    for item in client.call("ListEngines", request).engines:
        if item.in_sync or not item.connected:
            continue
        text = (
            f"engine {engine} is {words.paused(words.policies(item.wanted_policies, item.wanted_hash))}; "
            f"'agentctl resume {engine}' puts this in force"
            if item.paused
            else f"this is not in force in engine {engine}; see 'agentctl describe engine {engine}'"
        )
        say(words.style(text, "yellow"), err=True)


def _manifest(item: admin.Policy) -> dict[str, Any]:
    document = as_json_values(item)
    manifest: dict[str, Any] = document.pop("manifest")
    document.pop("name")
    return manifest | {"status": document}


def _show_manifests(manifests: list[dict[str, Any]], output: str, *, single: bool) -> None:
    if output == "yaml":
        say_documents(manifests)
    else:
        say_document(manifests[0] if single else _list(manifests), output)


def _list(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": manifests}


def _in_force(item: admin.Policy) -> str:
    paused = f" ({item.engines_paused} paused)" if item.engines_paused else ""
    return f"{item.engines_in_force}/{item.engines_selected}{paused}"


def _selector_words(manifest_json: str) -> str:
    selector = selector_of(manifest_json)
    parts = [selector.labels] if selector.labels else []
    parts += [f"model={model}" for model in selector.models]
    return " ".join(parts) or "all"


def _leaves(document: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in document.items():
        if not prefix and name in _NOT_SET:
            continue
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{name}.")
        else:
            leaves.append((prefix + name, value))
    return leaves


def _expiry(text: str, now: float) -> str:
    if not text:
        return "never"
    moment = datetime.fromisoformat(text).timestamp()
    return words.style("expired", "red") if moment <= now else words.ago(int(moment * 1e9), now)
