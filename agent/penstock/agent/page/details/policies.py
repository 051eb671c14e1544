"""All policies, and one with its manifest, history and last change."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

import yaml
from penstock.agent.page.details.arguments import name_of
from penstock.agent.page.details.detail import (
    Detail,
    Link,
    Section,
    TextSection,
    sentences,
    table_section,
    text_section,
)
from penstock.agent.page.wire import AdminCalls, AnswerError, about, command, plain
from penstock.agent.views.policies import audit_rows, policy_description, policy_rows
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENTRIES = 20
_MAX_MANIFEST = 20_000


async def policies_detail(calls: AdminCalls, _query: Mapping[str, str]) -> Detail:
    """Return the table of ``agentctl get policy -o wide``."""
    found = list((await calls.call("ListPolicies", admin.ListPoliciesRequest())).policies)
    links = [Link("policy", name=item.name) for item in found]
    commands = [about("describe", "policy", name=item.name) for item in found]
    nothing = "" if found else "no policies; vLLM's own configuration is in force"
    table = table_section(
        "Policies", policy_rows(found, calls.clock()), sentence=nothing, links=links, commands=commands
    )
    return Detail("Policies", (), command("get", "policy"), (table,))


async def policy_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return one policy; of a relay whose agents differ the first."""
    name = name_of(query, "name")
    found = (await calls.call("ListPolicies", admin.ListPoliciesRequest(name=name))).policies
    if not found:
        raise AnswerError(404, f"policy {name!r} not found; 'agentctl get policy' lists them")
    item = found[0]
    engines = (await calls.call("ListEngines", admin.ListEnginesRequest())).engines
    entries = (await calls.call("ListAudit", admin.ListAuditRequest(name=name, limit=_ENTRIES))).entries
    rollouts = (await calls.call("ListPolicyRollouts", admin.ListPolicyRolloutsRequest())).rollouts
    manifest = manifest_text(item.manifest_json)
    selected = [each for each in engines if any(policy.name == name for policy in each.wanted_policies)]
    _, *lines = policy_description(item, selected, (), calls.clock())
    history = audit_rows(entries, calls.clock())
    sections: list[Section] = [
        text_section("Policy", lines),
        table_section("History", history, sentence="" if history.rows else "no change is recorded"),
        *last_change(entries),
    ]
    if len(manifest) <= _MAX_MANIFEST:
        sections.insert(1, TextSection("Manifest", manifest))
    differ = (
        [f"the agents of this relay have {len(found)} different policies of this name"]
        if len(found) > 1
        else []
    )
    moving = [
        f"rollout {each.state}, {each.percent} %: {each.message}" for each in rollouts if each.name == name
    ]
    return Detail(
        title=plain(f"Policy {name}"),
        sentences=sentences([*differ, *moving]),
        command=about("describe", "policy", name=name),
        sections=tuple(sections),
        manifest=manifest if len(manifest) <= _MAX_MANIFEST else "",
        generation=item.generation,
    )


def manifest_text(manifest_json: str) -> str:
    """Return a manifest as people write it. Pure."""
    return yaml.safe_dump(json.loads(manifest_json), sort_keys=False, allow_unicode=True)


def last_change(entries: Sequence[Any]) -> list[Section]:
    """Return the difference of the last change to the manifest before, as a section; nothing where there was none. Pure."""
    for entry in entries:
        if entry.old_manifest_json and entry.new_manifest_json:
            old, new = (manifest_text(each) for each in (entry.old_manifest_json, entry.new_manifest_json))
            lines = difflib.unified_diff(
                old.splitlines(),
                new.splitlines(),
                f"generation {entry.old_generation}",
                f"generation {entry.new_generation}",
                lineterm="",
            )
            return [text_section("Last change", lines)]
    return []
