"""Which engines a write of a policy is about. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.model import EngineKey
from penstock.agent.parsing import Target, select
from penstock.agent.policy.manifest import parse_manifest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage


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
