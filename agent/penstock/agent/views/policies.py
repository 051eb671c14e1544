"""Policies and the audit log: rows, manifests, descriptions. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.agent.parsing import Requirement, format_labels
from penstock.agent.views import text
from penstock.agent.views.engines import is_stopped
from penstock.agent.views.field_diff import flat_values
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import Table, table
from penstock.proto.v1.admin_pb2 import EngineSelector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.proto.v1 import admin_pb2 as admin

_REASON = "penstock.dev/reason"

_NOT_SET = frozenset({"selector", "rollout", "priority", "expiresAt", "mode"})


_LEFT_OUT = "without it: the rollout leaves it out"

# Shown in lines of their own.
_SHOWN_APART = ("selector.", "rollout.", "priority", "mode", "expiresAt")


def policy_rows(items: list[admin.Policy], now: float) -> Table:
    """Return the table of policies."""
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
                selector_words(item.manifest_json),
                ",".join(f"{path}={value}" for path, value in _leaves(spec, "")),
                in_force_words(item),
                expiry_words(expires, now),
                text.ago_of(item.changed, now).removesuffix(" ago"),
                str(item.generation),
                item.author or text.NONE,
                item.owner,
                text.one_line(reason) or text.NONE,
            )
        )
    headers = (
        "NAME", "PRIORITY", "MODE", "SELECTOR", "SETS", "IN-FORCE", "EXPIRES", "AGE",
        "GENERATION", "AUTHOR", "OWNER", "REASON",
    )  # fmt: skip
    return Table(headers, rows, wide=4)


def manifest_of(item: admin.Policy) -> dict[str, Any]:
    """Return the manifest of a policy with its status."""
    document = as_json_values(item)
    manifest: dict[str, Any] = document.pop("manifest")
    document.pop("name")
    return manifest | {"status": document}


def in_force_words(item: admin.Policy) -> str:
    """Return in how many of the selected engines a policy is in force, and how many its rollout leaves out."""
    paused = f" ({item.engines_paused} paused)" if item.engines_paused else ""
    percent = share_of(item.manifest_json)
    share = "" if percent is None else f" ({percent} % of {item.engines_matched})"
    if percent is not None and "candidate" in json.loads(item.manifest_json)["spec"]["rollout"]:
        share = f" (its candidate in {percent} %)"
    return f"{item.engines_in_force}/{item.engines_selected}{share}{paused}"


def share_of(manifest_json: str) -> int | None:
    """Return ``spec.rollout.percent`` of a manifest; None without it."""
    rollout = json.loads(manifest_json)["spec"].get("rollout")
    return None if rollout is None else int(rollout["percent"])


def selector_words(manifest_json: str) -> str:
    """Return the selector of a manifest; ``all`` for none."""
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


def expiry_words(expires: str, now: float) -> str:
    """Return when a policy expires."""
    if not expires:
        return "never"
    moment = datetime.fromisoformat(expires).timestamp()
    return text.style("expired", "red") if moment <= now else text.ago(int(moment * 1e9), now)


def policy_description(
    item: admin.Policy, engines: Iterable[admin.Engine], entries: Iterable[admin.AuditEntry], now: float
) -> Iterator[str]:
    """Yield the lines of a description."""
    manifest = json.loads(item.manifest_json)
    spec = manifest["spec"]
    yield f"Policy: {item.name}"
    yield f"Generation: {item.generation}"
    yield f"Changed: {text.ago_of(item.changed, now)} by {item.author or 'unknown'}"
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
    yield from text.section("Annotations", (f"{key}={value}" for key, value in sorted(annotations.items())))
    fields = (f"{path} = {value}" for path, value in flat_values(spec) if not path.startswith(_SHOWN_APART))
    yield from text.section("Sets", fields)
    yield f"In force: {in_force_words(item)} engines"
    standings = (
        f"{text.engine(engine.key)}: {_LEFT_OUT if _left_out(item, engine) else _standing(engine)}"
        for engine in engines
    )
    yield from text.section("Engines", standings)
    history = audit_rows(entries, now).narrow()
    if history.rows:
        yield from text.section("Audit", table(history.headers, history.rows).splitlines())


def _left_out(item: admin.Policy, engine: admin.Engine) -> bool:
    partial = item.engines_selected < item.engines_matched
    return partial and all(policy.name != item.name for policy in engine.wanted_policies)


def _standing(engine: admin.Engine) -> str:
    if is_stopped(engine):
        return text.style("stopped; applied when it starts", "yellow")
    if not engine.connected:
        return text.style("disconnected; applied when it reconnects", "red")
    if engine.paused:
        return text.style(text.paused(text.policies(engine.wanted_policies, engine.wanted_hash)), "yellow")
    return text.style("in force", "green") if engine.in_sync else text.style("not in force yet", "yellow")


def audit_rows(items: Iterable[admin.AuditEntry], now: float) -> Table:
    """Return the table of audit entries."""
    return Table(
        ("AGE", "AUTHOR", "ACTION", "NAME", "GENERATION", "REASON", "OLD-HASH", "NEW-HASH"),
        [
            (
                text.ago_of(item.time, now).removesuffix(" ago"),
                item.author or text.NONE,
                item.action,
                item.name,
                f"{item.old_generation or 'none'} → {item.new_generation}"
                if item.new_generation
                else text.NONE,
                text.one_line(item.reason) or text.NONE,
                item.old_hash[:12] or text.NONE,
                item.new_hash[:12] or text.NONE,
            )
            for item in items
        ],
        wide=2,
    )


def selector_of(manifest_json: str) -> EngineSelector:
    """Return the selector of a manifest that the agent accepted."""
    selector = json.loads(manifest_json)["spec"].get("selector", {})
    requirements = [
        Requirement(key, "In", (value,)) for key, value in selector.get("matchLabels", {}).items()
    ]
    requirements += [
        Requirement(item["key"], item["operator"], tuple(item.get("values", ())))
        for item in selector.get("matchExpressions", ())
    ]
    return EngineSelector(labels=format_labels(requirements), models=selector.get("models", ()))
