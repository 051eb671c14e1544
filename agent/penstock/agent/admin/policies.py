"""The calls about policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin import convert
from penstock.agent.admin.targets import find_target, key_of, targets
from penstock.agent.errors import ManifestError, NotFoundError
from penstock.agent.policy.merge import effective
from penstock.agent.policy.model import parse_manifest
from penstock.agent.selector import select
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from penstock.agent.admin.context import AgentContext
    from penstock.agent.policy.merge import Given
    from penstock.agent.policy.model import Manifest
    from penstock.agent.policy.store import Applied, StoredPolicy
    from penstock.agent.selector import Target

# What only decides where the action leaves it open.
_ONLY_WITH_AUTO = {
    "kvLoadFailure": frozenset(
        {
            "kvLoadFailure.maxRecomputeTokens",
            "kvLoadFailure.recomputeBudget.tokensPerSecond",
            "kvLoadFailure.overBudget",
        }
    ),
    "ecLoadFailure": frozenset({"ecLoadFailure.maxRecomputeItems"}),
}
_OWN_ACTION = {"kvLoadFailure": "vLLM's own", "ecLoadFailure": "the connector's own"}
MAX_AUDIT = 1000
_DEFAULT_AUDIT = 100


async def apply_policy(agent: AgentContext, request: admin.ApplyPolicyRequest) -> admin.ApplyPolicyResponse:
    """Create or replace a policy, or tell what that would do."""
    manifest = parse_manifest(request.manifest_json)
    if not request.all and _fails_everywhere(manifest):
        raise ManifestError(
            "spec.selector is empty, so action fail would hold in every engine; "
            "give a selector (--selector, --model), or confirm with --all",
            "spec.selector",
        )
    applied = await agent.store.apply(
        manifest,
        author=request.author,
        if_generation=request.if_generation if request.HasField("if_generation") else None,
        dry_run=request.dry_run,
    )
    return _response(agent, applied, manifest)


async def delete_policy(agent: AgentContext, request: admin.DeletePolicyRequest) -> admin.ApplyPolicyResponse:
    """Remove a policy, or tell what that would do."""
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
    """Make an earlier content a new generation, or tell what that would do."""
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
    """Return all policies, or the one of a name."""
    found = [
        _policy(agent, policy)
        for policy in agent.store.policies()
        if request.name in {"", policy.manifest.name}
    ]
    if request.name and not found:
        raise NotFoundError(f"there is no policy {request.name!r}; 'agentctl get policy' lists them")
    return admin.ListPoliciesResponse(policies=found)


async def get_effective_policy(
    agent: AgentContext, request: admin.GetEffectivePolicyRequest
) -> admin.EffectivePolicy:
    """Return the merge of all policies that select one engine."""
    target = find_target(agent, key_of(request.key))
    return convert.effective_message(target, agent.schedule(target))


async def list_audit(agent: AgentContext, request: admin.ListAuditRequest) -> admin.ListAuditResponse:
    """Return the newest entries of the audit log, newest first."""
    limit = min(request.limit or _DEFAULT_AUDIT, MAX_AUDIT)
    entries = await agent.store.changes(request.name, limit)
    return admin.ListAuditResponse(entries=map(convert.audit_message, entries))


def _fails_everywhere(manifest: Manifest) -> bool:
    return (
        manifest.spec.mode == "enforce"
        and manifest.spec.selector.selection().everything
        and "fail"
        in (manifest.leaves.get("kvLoadFailure.action"), manifest.leaves.get("ecLoadFailure.action"))
    )


def _response(agent: AgentContext, applied: Applied, manifest: Manifest | None) -> admin.ApplyPolicyResponse:
    now = agent.now
    response = admin.ApplyPolicyResponse(
        name=applied.name,
        store_generation=applied.store_generation,
        generation=applied.generation,
        result=applied.result,
    )
    for _, target in sorted(targets(agent).items()):
        old = effective(applied.before, target, now)[0].merged
        new = effective(applied.after, target, now)[0].merged
        change = convert.engine_change(target, old, new)
        if change is not None:
            response.engines.append(change)
    if manifest is not None:
        response.warnings.extend(_warnings(agent, manifest, applied, now))
    return response


def _warnings(agent: AgentContext, manifest: Manifest, applied: Applied, now: datetime) -> Iterator[str]:
    selected = select(targets(agent).values(), manifest.spec.selector.selection())
    if not selected:
        yield f"policy {manifest.name} selects no engine that is known now; it waits for one"
    for target in selected:
        yield from _unsupported(agent, manifest, target)
        merged = effective(applied.after, target, now)[0].merged
        given = (merged.observed if manifest.spec.mode == "observe" else merged.body) or {}
        yield from _without_effect(manifest, target, given)
        for path in manifest.leaves:
            winner = given[path].policy if path in given else manifest.name
            if winner != manifest.name:
                yield f"engine {target.key}: spec.{path} is given by policy {winner}, which ranks higher"


def _without_effect(manifest: Manifest, target: Target, given: Mapping[str, Given]) -> Iterator[str]:
    for section, paths in _ONLY_WITH_AUTO.items():
        action = given.get(f"{section}.action")
        idle = sorted(paths & manifest.leaves.keys())
        if idle and (action is None or action.value != "auto"):
            present = _OWN_ACTION[section] if action is None else action.value
            yield (
                f"engine {target.key}: spec.{idle[0]} has no effect while the action is {present}; "
                f"set {section}.action to auto"
            )


def _unsupported(agent: AgentContext, manifest: Manifest, target: Target) -> Iterator[str]:
    subscriber = agent.feed.subscriber(target.key)
    if subscriber is None or not subscriber.supported:
        return
    for section in sorted({path.partition(".")[0] for path in manifest.leaves}):
        if _snake(section) not in subscriber.supported:
            yield f"engine {target.key} does not know spec.{section} and will refuse the policy"


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _policy(agent: AgentContext, stored: StoredPolicy) -> admin.Policy:
    selected = select(targets(agent).values(), stored.manifest.spec.selector.selection())
    subscribers = (agent.feed.subscriber(target.key) for target in selected)
    return admin.Policy(
        name=stored.manifest.name,
        generation=stored.generation,
        manifest_json=stored.manifest.canonical,
        owner=stored.owner,
        author=stored.author,
        changed=convert.timestamp(stored.changed_unix_nano),
        engines_selected=len(selected),
        engines_in_force=sum(1 for item in subscribers if item is not None and item.in_force),
    )
