"""Takes the last change of a policy back: to the manifest before it, or to no policy, where there was none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.agent.page.details.arguments import flag_of, name_of, number_of
from penstock.agent.page.details.policy import changes_of, policies_of
from penstock.agent.page.details.policy_fields import with_reason
from penstock.agent.page.wire import AdminCalls, AnswerError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping


async def undo_request(
    calls: AdminCalls, body: Mapping[str, Any], author: str
) -> tuple[str, admin.ApplyPolicyRequest | admin.DeletePolicyRequest]:
    """Return in words what undoes the last change of a policy, and the request.

    It holds for the generation of the body only: what somebody changes meanwhile is not undone.

    Raises:
        AnswerError: there is no such policy, it has changed meanwhile, or what was before is not recorded.

    """
    name, dry_run, reason = (
        name_of(body, "name"),
        flag_of(body, "dryRun"),
        name_of(body, "reason", needed=False),
    )
    generation = number_of(body, "generation", 0, 2**53)
    found = await policies_of(calls, name)
    changes = await changes_of(calls, name)
    if not found and not changes:
        raise AnswerError(404, f"policy {name!r} not found; 'agentctl get policy' lists them")
    present = found[0].generation if found else 0
    if present != generation:
        raise AnswerError(
            409,
            f"policy {name!r} is at generation {present or 'none'}, not at {generation or 'none'}; ask again",
        )
    last = (
        next((each for each in changes if each.new_generation == generation), None) if found else changes[0]
    )
    if last is None:
        raise AnswerError(
            409,
            f"what was before generation {generation} is not recorded; edit it, or 'agentctl delete policy {name}'",
        )
    whose = f"{last.action} by {last.author or 'unknown'} {'would be undone' if dry_run else 'undone'}"
    becomes = "would be" if dry_run else "is"
    if not last.old_manifest_json:
        return (
            f"{whose}: there {becomes} no policy {name}, as before",
            admin.DeletePolicyRequest(
                name=name, author=author, reason=reason, if_generation=generation, dry_run=dry_run
            ),
        )
    manifest = with_reason(json.loads(last.old_manifest_json), reason)
    return (
        f"{whose}: policy {name} {becomes} what it was as generation {last.old_generation}",
        admin.ApplyPolicyRequest(
            manifest_json=json.dumps(manifest),
            author=author,
            if_generation=generation,
            dry_run=dry_run,
            all=True,
        ),
    )
