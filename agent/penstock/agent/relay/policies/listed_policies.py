"""The policies of a source beside what the agents have of them, and which engines a write is about. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.model import EngineKey
from penstock.agent.parsing import Target, select
from penstock.agent.policy.manifest import parse_manifest
from penstock.agent.relay.policies.policy_writes import AUTHOR
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.relay.policies.fleet_policies import FoundPolicies
    from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

_COUNTS = ("engines_selected", "engines_in_force", "engines_paused", "engines_matched")
_MAX_UINT32 = (1 << 32) - 1


def with_source(
    agents: Iterable[admin.Policy], found: FoundPolicies, source: str, name: str = ""
) -> list[admin.Policy]:
    """Return the policies by name: those of the source first, and what agents have besides.

    Args:
        agents: of all agents, each content once.
        found: the policies at the source; a generation there is its revision.
        source: its name, the owner of those policies.
        name: return only this policy, as it is at the source if it is there; empty for all.

    """
    rows = {
        policy.manifest.name: admin.Policy(
            name=policy.manifest.name,
            generation=policy.revision,
            manifest_json=policy.manifest.canonical,
            owner=source,
            author=policy.manifest.metadata.annotations.get(AUTHOR, ""),
        )
        for policy in found.policies.values()
    }
    others = []
    for each in agents:
        row = rows.get(each.name)
        if row is None or row.manifest_json != each.manifest_json:
            others.append(each)
            continue
        for field in _COUNTS:
            setattr(row, field, min(getattr(row, field) + getattr(each, field), _MAX_UINT32))
        if each.changed.ToNanoseconds() > row.changed.ToNanoseconds():
            row.changed.CopyFrom(each.changed)
    if name:
        own = rows.get(name)
        return [own] if own is not None else [each for each in others if each.name == name]
    return sorted([*rows.values(), *others], key=lambda each: (each.name, each.owner != source))


def affected(
    engines: Iterable[admin.Engine], request: admin.ApplyPolicyRequest | admin.DeletePolicyRequest
) -> list[EngineKeyMessage]:
    """Return those of *engines* that have the policy, or that the new manifest matches."""
    engines = list(engines)
    if isinstance(request, admin.DeletePolicyRequest):
        name, matched = request.name, set()
    else:
        manifest = parse_manifest(request.manifest_json)
        selection = manifest.spec.selector.selection
        name, matched = manifest.name, {target.key for target in select(map(_target, engines), selection)}
    return [
        engine.key
        for engine in engines
        if any(policy.name == name for policy in engine.wanted_policies)
        or EngineKey(engine.key.server, engine.key.engine) in matched
    ]


def _target(engine: admin.Engine) -> Target:
    """Return what selectors see of an engine, as its agent does."""
    labels = dict(engine.labels)
    # A newer agent may know more roles.
    if engine.role and engine.role in Role.values():
        labels = {"role": Role.Name(engine.role).removeprefix("ROLE_").lower(), **labels}
    return Target(EngineKey(engine.key.server, engine.key.engine), engine.facts.model, labels)
