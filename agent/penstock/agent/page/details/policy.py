"""The answer about a policy: since when it is as it is, what each change of it did, and its manifest for the editor."""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import name_of
from penstock.agent.page.details.detail import (
    Detail,
    Section,
    TextSection,
    sentences,
    table_section,
    text_section,
)
from penstock.agent.page.details.policy_fields import edit_fields, manifest_text
from penstock.agent.page.details.tables import since_of
from penstock.agent.page.wire import AdminCalls, AnswerError, about, plain
from penstock.agent.views import text
from penstock.agent.views.field_diff import differences
from penstock.agent.views.policies import in_force_words, policy_description
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MAX_CHANGES = 20
_MAX_MANIFEST = 20_000
_MAX_FIELDS = 6


async def policy_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return one policy; of a relay whose agents differ the first, of one that was deleted its history."""
    name = name_of(query, "name")
    found = await policies_of(calls, name)
    entries = await changes_of(calls, name)
    if not found:
        return _gone(name, entries, calls.clock())
    item = found[0]
    engines = (await calls.call("ListEngines", admin.ListEnginesRequest())).engines
    rollouts = (await calls.call("ListPolicyRollouts", admin.ListPolicyRolloutsRequest())).rollouts
    document = json.loads(item.manifest_json)
    manifest = manifest_text(document)
    short = len(manifest) <= _MAX_MANIFEST
    selected = [each for each in engines if any(policy.name == name for policy in each.wanted_policies)]
    _, *lines = policy_description(item, selected, (), calls.clock())
    sections: list[Section] = [
        _changes(entries, calls.clock()),
        replace(text_section("Policy", lines), folded=True),
    ]
    if short:
        sections.append(TextSection("Manifest", manifest, folded=True))
    differ = [f"the agents of this relay have {len(found)} different policies of this name"]
    moving = (
        f"rollout {each.state}, {each.percent} %: {each.message}" for each in rollouts if each.name == name
    )
    return Detail(
        title=plain(f"Policy {name}"),
        sentences=sentences([_standing(item, calls.clock()), *(differ if len(found) > 1 else []), *moving]),
        command=about("describe", "policy", name=name),
        sections=tuple(sections),
        manifest=manifest if short else "",
        generation=item.generation,
        fields=edit_fields(document) if short else (),
    )


async def policies_of(calls: AdminCalls, name: str) -> list[admin.Policy]:
    """Return the policies of a name: of a relay one for each that agents have, none where there is none."""
    try:
        return list((await calls.call("ListPolicies", admin.ListPoliciesRequest(name=name))).policies)
    except AnswerError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return []
        raise


async def changes_of(calls: AdminCalls, name: str) -> list[admin.AuditEntry]:
    """Return the last changes of a policy, the newest first; of a relay each once, though each agent has it."""
    entries = (await calls.call("ListAudit", admin.ListAuditRequest(name=name, limit=_MAX_CHANGES))).entries
    return each_once(entries)


def each_once(entries: Iterable[admin.AuditEntry]) -> list[admin.AuditEntry]:
    """Return changes, the newest first, and what several agents say of one change once. Pure.

    One agent never makes the same change twice running: what comes again after another change is another change.
    """
    newest_first = sorted(entries, key=lambda each: each.time.ToNanoseconds(), reverse=True)
    groups = groupby(
        newest_first, lambda each: (each.author, each.action, each.old_hash, each.new_hash, each.reason)
    )
    return [next(group) for _, group in groups]


def _gone(name: str, entries: list[admin.AuditEntry], now: float) -> Detail:
    if not entries:
        raise AnswerError(404, f"policy {name!r} not found; 'agentctl get policy' lists them")
    last = entries[0]
    words = (
        f"There is no policy {name} any more: {last.action} by {last.author or 'unknown'}, {_when(last, now)}"
    )
    return Detail(
        plain(f"Policy {name}"),
        sentences([words]),
        about("get", "audit", name=name),
        (_changes(entries, now),),
    )


def _standing(item: admin.Policy, now: float) -> str:
    return (
        f"Generation {item.generation}, by {item.author or 'unknown'}, {since_of(item.changed, now)}; "
        f"in force in {in_force_words(item)} engines"
    )


def _changes(entries: Iterable[admin.AuditEntry], now: float) -> Section:
    rows: list[tuple[str, ...]] = [
        (
            _when(entry, now),
            entry.author or text.NONE,
            text.one_line(entry.reason) or text.NONE,
            f"{entry.old_generation or 'none'} → {entry.new_generation or 'none'}",
            "; ".join(change_words(entry)),
        )
        for entry in entries
    ]
    table = Table(("WHEN", "WHO", "WHY", "GENERATION", "WHAT IT CHANGED"), rows)
    return table_section("Changes", table, sentence="" if rows else "no change is recorded")


def _when(entry: admin.AuditEntry, now: float) -> str:
    return since_of(entry.time, now).removeprefix("since ")


def change_words(entry: admin.AuditEntry) -> Iterator[str]:
    """Yield what a change of a policy did, field by field: ``kvLoadFailure.action: recompute → fail``. Pure."""
    if not entry.new_manifest_json:
        yield entry.action
        return
    old, new = (
        json.loads(each).get("spec", {}) if each else {}
        for each in (entry.old_manifest_json, entry.new_manifest_json)
    )
    found = differences(old, new)
    if not entry.old_manifest_json:
        yield "created" if entry.action == "apply" else entry.action
    elif not found:
        yield "nothing in its spec"
    for each in found[:_MAX_FIELDS]:
        left, right = (text.one_line(side or "not set") for side in (each.left, each.right))
        yield f"{each.field}: {right}" if not entry.old_manifest_json else f"{each.field}: {left} → {right}"
    if len(found) > _MAX_FIELDS:
        yield f"{len(found) - _MAX_FIELDS} more"
