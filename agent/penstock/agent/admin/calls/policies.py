"""The calls about policies, one by one, and all as one document."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from penstock.agent.admin.lookups import (
    check_confirmed,
    engine_changes,
    engine_key_of,
    find_target,
    messages,
    policy_states,
    policy_warnings,
    shares,
    targets_by_key,
)
from penstock.agent.errors import ManifestError, NotFoundError
from penstock.agent.parsing import select
from penstock.agent.policy.manifest import (
    Manifest,
    check_manifest,
    is_of_the_fleet,
    parse_manifest,
    prefix_errors,
    read_json,
)
from penstock.agent.policy.store import IMPERATIVE, MAX_POLICIES
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.agent.admin.lookups import AgentContext, PolicyStates
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target
    from penstock.agent.policy.store import Applied, StoredPolicy

MAX_AUDIT = 1000
_DEFAULT_AUDIT = 100


async def apply_policy(agent: AgentContext, request: admin.ApplyPolicyRequest) -> admin.ApplyPolicyResponse:
    """Create or replace a policy; a dry run only returns the effect."""
    manifest = parse_manifest(request.manifest_json)
    check_confirmed(manifest, request.all)
    applied = await agent.store.apply(
        manifest,
        author=request.author,
        if_generation=request.if_generation if request.HasField("if_generation") else None,
        dry_run=request.dry_run,
    )
    return _response(agent, applied, manifest)


async def delete_policy(agent: AgentContext, request: admin.DeletePolicyRequest) -> admin.ApplyPolicyResponse:
    """Delete a policy; a dry run only returns the effect."""
    applied = await agent.store.delete(
        request.name,
        author=request.author,
        reason=request.reason,
        if_generation=request.if_generation if request.HasField("if_generation") else None,
        dry_run=request.dry_run,
    )
    return _response(agent, applied, None)


async def rollback_policy(
    agent: AgentContext, request: admin.RollbackPolicyRequest
) -> admin.ApplyPolicyResponse:
    """Roll a policy back to an earlier revision; a dry run only returns the effect."""
    applied = await agent.store.rollback(
        request.name,
        to_generation=request.to_generation,
        author=request.author,
        reason=request.reason,
        dry_run=request.dry_run,
    )
    manifest = next(item for item in applied.after if item.name == request.name)
    return _response(agent, applied, manifest)


async def list_policies(
    agent: AgentContext, request: admin.ListPoliciesRequest
) -> admin.ListPoliciesResponse:
    """Return all policies, or the named one."""
    views = agent.registry.engines()
    known = targets_by_key(agent, views).values()
    stands = policy_states(agent, views)
    giving = _giving(agent, known, stands.in_force | stands.paused)
    found = [
        _policy(policy, known, giving, stands)
        for policy in agent.store.policies()
        if request.name in {"", policy.manifest.name}
    ]
    if request.name and not found:
        raise NotFoundError(f"policy {request.name!r} does not exist; 'agentctl get policy' lists policies")
    return admin.ListPoliciesResponse(policies=found)


async def get_effective_policy(
    agent: AgentContext, request: admin.GetEffectivePolicyRequest
) -> admin.EffectivePolicy:
    """Return the merge of all policies that select one engine."""
    target = find_target(agent, engine_key_of(request.key))
    return messages.effective_message(target, agent.schedule(target), agent.store.policies())


async def list_audit(agent: AgentContext, request: admin.ListAuditRequest) -> admin.ListAuditResponse:
    """Return the newest entries of the audit log, newest first."""
    limit = min(request.limit or _DEFAULT_AUDIT, MAX_AUDIT)
    entries = await agent.store.changes(request.name, limit, request.actions)
    return admin.ListAuditResponse(entries=map(messages.audit_message, entries))


def _response(agent: AgentContext, applied: Applied, manifest: Manifest | None) -> admin.ApplyPolicyResponse:
    views = agent.registry.engines()
    known = targets_by_key(agent, views)
    return admin.ApplyPolicyResponse(
        name=applied.name,
        store_generation=applied.store_generation,
        generation=applied.generation,
        result=applied.result,
        engines=engine_changes(agent, known, applied.before, applied.after),
        warnings=() if manifest is None else policy_warnings(agent, views, known, [manifest], applied.after),
        shares=() if manifest is None else shares([manifest], known),
    )


def _giving(
    agent: AgentContext, known: Iterable[Target], holding: Collection[EngineKey]
) -> dict[EngineKey, frozenset[str]]:
    """Return the policies that set a field in each engine of *holding*, by engine."""
    found = {}
    for target in known:
        if target.key in holding:
            merged = agent.schedule(target)[0].merged
            given = (*merged.body.values(), *(merged.observed or {}).values())
            found[target.key] = frozenset(item.policy for item in given)
    return found


def _policy(
    stored: StoredPolicy,
    known: Iterable[Target],
    giving: Mapping[EngineKey, Collection[str]],
    stands: PolicyStates,
) -> admin.Policy:
    name = stored.manifest.name
    matched = select(known, stored.manifest.spec.selector.selection)
    selected = [target for target in matched if stored.manifest.selects(target)]
    # Engines are sent nothing of it: there is nothing that they could have in force.
    of_the_fleet = all(map(is_of_the_fleet, stored.manifest.leaves))
    # An expired policy, or one outranked in every field, is in force nowhere.
    given = {target.key for target in selected if name in giving.get(target.key, ())}
    return admin.Policy(
        name=name,
        generation=stored.generation,
        manifest_json=stored.manifest.canonical,
        owner=stored.owner,
        author=stored.author,
        changed=messages.timestamp_message(stored.changed_unix_nano),
        engines_selected=len(selected),
        engines_in_force=len(selected) if of_the_fleet else len(given & stands.in_force),
        engines_paused=len(given & stands.paused),
        engines_matched=len(matched),
    )


async def export_policies(
    agent: AgentContext, _: admin.ExportPoliciesRequest
) -> admin.ExportPoliciesResponse:
    """Return all policies except those of files and expired ones."""
    items = [
        policy.manifest.document()
        for policy in agent.store.policies()
        if policy.owner == IMPERATIVE and not policy.manifest.expired(agent.now)
    ]
    bundle = {"apiVersion": "v1", "kind": "List", "items": items}
    return admin.ExportPoliciesResponse(manifests_json=json.dumps(bundle, ensure_ascii=False))


async def import_policies(
    agent: AgentContext, request: admin.ImportPoliciesRequest
) -> admin.ApplyPolicyResponse:
    """Create or replace all policies of a bundle, or none; a dry run only returns the effect."""
    # A second of a core, for the largest.
    bundle = await asyncio.to_thread(_read, request.manifests_json)
    present = {policy.manifest.canonical for policy in agent.store.policies()}
    expired = [manifest for manifest in bundle if manifest.expired(agent.now)]
    manifests = [manifest for manifest in bundle if manifest not in expired]
    for manifest in manifests:
        if manifest.canonical not in present:
            with prefix_errors(manifest.name):
                check_confirmed(manifest, request.all)
    applied = await agent.store.apply_all(
        manifests, author=request.author, reason=request.reason, dry_run=request.dry_run
    )
    views = agent.registry.engines()
    known = targets_by_key(agent, views)
    response = admin.ApplyPolicyResponse(
        store_generation=applied.store_generation,
        result="changed" if any(item.result != "unchanged" for item in applied.results) else "unchanged",
        engines=engine_changes(agent, known, applied.before, applied.after),
        policies=[
            admin.PolicyResult(name=item.name, generation=item.generation, result=item.result)
            for item in applied.results
        ],
    )
    response.warnings.extend(f"policy {manifest.name} has expired and is skipped" for manifest in expired)
    response.warnings.extend(policy_warnings(agent, views, known, manifests, applied.after))
    response.shares.extend(shares(manifests, known))
    return response


def _read(text: str) -> list[Manifest]:
    bundle = read_json(text, "the bundle")
    items = bundle.get("items") if isinstance(bundle, dict) and bundle.get("kind") == "List" else None
    if not isinstance(items, list):
        raise ManifestError("the bundle is not an object of kind List with items; see 'agentctl export'")
    if len(items) > MAX_POLICIES:
        raise ManifestError(f"the bundle has {len(items)} policies, the limit is {MAX_POLICIES}; split it")
    return [named_manifest(f"items[{number}]", item) for number, item in enumerate(items)]


def named_manifest(place: str, item: Any) -> Manifest:
    """Return a manifest; an error begins with the policy's name, or with its *place* if it has none."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    with prefix_errors(name if isinstance(name, str) else place):
        return check_manifest(item)
