"""Export of all policies as one document, and import of all or none."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from penstock.agent.admin.lookups import (
    check_confirmed,
    engine_changes,
    policy_warnings,
    shares,
    targets_by_key,
)
from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest import Manifest, check_manifest, prefix_errors, read_json
from penstock.agent.policy.store import IMPERATIVE, MAX_POLICIES
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.admin.lookups import AgentContext


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
