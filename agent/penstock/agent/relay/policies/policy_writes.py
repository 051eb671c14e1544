"""The calls of the admin service that write policies, for a whole fleet: they write to its source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog
from penstock.agent.admin.lookups import check_confirmed
from penstock.agent.errors import ConflictError, ManifestError, NotFoundError
from penstock.agent.policy.manifest import Manifest, check_manifest, parse_manifest
from penstock.agent.relay.policies.fleet_policies import FleetPolicy
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.relay.policies.fleet_policies import FleetPolicies

AUTHOR = "penstock.dev/author"
"""The annotation that has who wrote the policy through a relay."""
_ATTEMPTS = 5

_log = structlog.get_logger(__name__)


async def apply_policy(
    policies: FleetPolicies, request: admin.ApplyPolicyRequest
) -> admin.ApplyPolicyResponse:
    """Create or replace a policy at the source; a dry run only checks.

    Raises:
        ManifestError: the manifest is refused by the model, or by the API server.
        ConflictError: the policy is at another generation than the request says, or changes all the time.
        ImpossibleError: the source cannot be written.

    """
    manifest = parse_manifest(request.manifest_json)
    check_confirmed(manifest, request.all)
    wanted = request.if_generation if request.HasField("if_generation") else None
    for last in (*[False] * (_ATTEMPTS - 1), True):
        found = await policies.read()
        present, revision = found.policies.get(manifest.name), found.revisions.get(manifest.name, 0)
        _check(manifest.name, revision, wanted)
        if present is not None and _content(present.manifest) == _content(manifest):
            return _response(policies, present, "unchanged")
        # What is there and is no policy is corrected by a write.
        result = "changed" if revision else "created"
        if request.dry_run:
            return _response(policies, present or FleetPolicy(manifest, revision), result)
        try:
            written = await policies.put(signed(manifest, request.author), revision)
        except ConflictError:
            # A status was written, or another policy's write came between.
            if last:
                raise
            continue
        _log.info(
            "policy written",
            policy=manifest.name,
            source=policies.name,
            revision=written.revision,
            author=request.author,
            reason=manifest.reason,
        )
        return _response(policies, written, result)
    raise AssertionError


async def delete_policy(
    policies: FleetPolicies, request: admin.DeletePolicyRequest
) -> admin.ApplyPolicyResponse:
    """Delete a policy at the source; a dry run only checks.

    Raises:
        NotFoundError: there is no such policy.
        ConflictError: the policy is at another generation than the request says.
        ImpossibleError: the source cannot be written.

    """
    found = await policies.read()
    revision = found.revisions.get(request.name, 0)
    if not revision:
        raise NotFoundError(
            f"policy {request.name!r} is not in {policies.name}; 'agentctl get policy' lists policies"
        )
    _check(request.name, revision, request.if_generation if request.HasField("if_generation") else None)
    response = admin.ApplyPolicyResponse(name=request.name, result="deleted")
    response.source.MergeFrom(admin.SourceWrite(kind=policies.kind, place=policies.place, name=request.name))
    if request.dry_run:
        return response
    await policies.delete(request.name, revision)
    _log.info(
        "policy deleted",
        policy=request.name,
        source=policies.name,
        author=request.author,
        reason=request.reason,
    )
    return response


async def export_policies(
    policies: FleetPolicies, _: admin.ExportPoliciesRequest
) -> admin.ExportPoliciesResponse:
    """Return all policies of the source as one document."""
    found = (await policies.read()).policies
    items = [found[name].manifest.document() for name in sorted(found)]
    bundle = {"apiVersion": "v1", "kind": "List", "items": items}
    return admin.ExportPoliciesResponse(manifests_json=json.dumps(bundle, ensure_ascii=False))


def _check(name: str, found: int, wanted: int | None) -> None:
    if wanted is not None and wanted != found:
        where = f"at generation {found}" if found else "not there"
        raise ConflictError(
            f"policy {name!r} is {where}, not at {wanted}; 'agentctl get policy {name}' shows it, then retry"
        )


def _response(policies: FleetPolicies, policy: FleetPolicy, result: str) -> admin.ApplyPolicyResponse:
    manifest = policy.manifest
    return admin.ApplyPolicyResponse(
        name=manifest.name,
        generation=policy.revision,
        result=result,
        source=admin.SourceWrite(
            kind=policies.kind,
            place=policies.place,
            name=manifest.name,
            content=manifest.digest,
            # Of what is unchanged, a refusal counts whenever it was.
            revision=0 if result == "unchanged" else policy.revision,
        ),
    )


def _content(manifest: Manifest) -> object:
    """Return what of *manifest* a write would change."""
    document = manifest.document()
    document["metadata"].get("annotations", {}).pop(AUTHOR, None)
    if not document["metadata"].get("annotations"):
        document["metadata"].pop("annotations", None)
    return document


def signed(manifest: Manifest, author: str) -> Manifest:
    """Return *manifest* with its author."""
    document = manifest.document()
    document["metadata"]["annotations"] = document["metadata"].get("annotations", {}) | {
        AUTHOR: author[:256] or "unknown"
    }
    try:
        return check_manifest(document)
    except ManifestError:
        # It has as many annotations as there may be.
        return manifest
