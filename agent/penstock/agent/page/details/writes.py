"""What the page may change: policies, pauses, quarantines; each says first what it would do."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from penstock.agent.page.details.arguments import engine_of, flag_of, name_of, number_of, selector_of
from penstock.agent.page.details.detail import Section, WriteAnswer, fitted, sentences, table_section
from penstock.agent.page.details.policy_fields import manifest_of, with_reason, write_draft
from penstock.agent.page.details.undo import undo_request
from penstock.agent.page.details.what_if import WhatIf, what_if
from penstock.agent.page.wire import AdminCalls, AnswerError, command, plain
from penstock.agent.views import text
from penstock.agent.views.engines import is_stopped
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.proto.v1.common_pb2 import EngineKey

_MAX_SECONDS = 86_400
# Of a pause: engines that have not followed by then are listed as they are.
_FOLLOW_SECONDS = 5.0


async def write_policy(calls: AdminCalls, body: Mapping[str, Any], author: str) -> bytes:
    """Apply a manifest, or say what it would change; the generation of the dry run keeps others' changes."""
    # A quarter of a second of a core, for the longest.
    manifest, dry_run = await asyncio.to_thread(manifest_of, body), flag_of(body, "dryRun")
    manifest = with_reason(manifest, name_of(body, "reason", needed=False))
    written = json.dumps(manifest)
    request = admin.ApplyPolicyRequest(manifest_json=written, author=author, dry_run=dry_run)
    if body.get("generation") is not None:
        request.if_generation = number_of(body, "generation", 0, 2**53)
        # 0 says that there is none yet.
        request.all = request.if_generation > 0 and await _selects_all(
            calls, name_of(body, "name", needed=False)
        )
    response = await calls.call("ApplyPolicy", request)
    would = "would be " if dry_run else ""
    sentence = f"policy {response.name} {would}{response.result}, generation {response.generation}"
    past = await what_if(calls, written, response) if dry_run else WhatIf((), ())
    return _written(sentence, response, past, command("apply", "-f", "FILE"), dry_run=dry_run)


async def write_undo(calls: AdminCalls, body: Mapping[str, Any], author: str) -> bytes:
    """Take the last change of a policy back, or say what that would change."""
    sentence, request = await undo_request(calls, body, author)
    if isinstance(request, admin.DeletePolicyRequest):
        response = await calls.call("DeletePolicy", request)
        return _written(
            sentence,
            response,
            WhatIf((), ()),
            command("delete", "policy", request.name),
            dry_run=request.dry_run,
        )
    response = await calls.call("ApplyPolicy", request)
    past = await what_if(calls, request.manifest_json, response) if request.dry_run else WhatIf((), ())
    return _written(sentence, response, past, command("rollback", response.name), dry_run=request.dry_run)


def _written(
    sentence: str, response: admin.ApplyPolicyResponse, past: WhatIf, same: str, *, dry_run: bool
) -> bytes:
    """Return the answer to a change of a policy; *same* is the command that does it."""
    return fitted(
        WriteAnswer(
            sentence=plain(sentence),
            sentences=sentences(
                [*(f"warning: {each}" for each in response.warnings), *response.shares, *past.sentences]
            ),
            sections=(_changes(response), *past.sections),
            command=f"{same} --dry-run" if dry_run else same,
        )
    )


async def write_pause(calls: AdminCalls, body: Mapping[str, Any], author: str) -> bytes:
    """Pause or resume an engine or all, or say which would be."""
    key, undo, seconds = (
        engine_of(body, "engine"),
        flag_of(body, "undo"),
        number_of(body, "seconds", 0, _MAX_SECONDS),
    )
    what = "resume" if undo else "pause"
    reason = name_of(body, "reason", needed=False)
    words = [what, *_engine_words(key), *_option("ttl", f"{seconds}s" if seconds and not undo else "")]
    words += _option("reason", reason)
    if flag_of(body, "dryRun"):
        return await _would(calls, key, what, words)
    request = admin.SetPausedRequest(selector=selector_of(key), paused=not undo, author=author, reason=reason)
    request.timeout.FromNanoseconds(int(_FOLLOW_SECONDS * 1e9))
    if seconds and not undo:
        request.ttl.FromSeconds(seconds)
    last = admin.Rollout()
    async for progress in calls.stream("SetPaused", request, 2 * _FOLLOW_SECONDS):
        last = progress
    return fitted(_followed(f"{what} ordered for {_whom(key)}", last, words))


async def write_quarantine(calls: AdminCalls, body: Mapping[str, Any], author: str) -> bytes:
    """Quarantine a peer or lift its quarantine, in an engine or in all, or say where it would be."""
    key, peer, undo = engine_of(body, "engine"), name_of(body, "peer"), flag_of(body, "undo")
    seconds = number_of(body, "seconds", 0, _MAX_SECONDS) or (60 if undo else 3_600)
    reason = name_of(body, "reason", needed=False)
    words = [
        "quarantine",
        "lift" if undo else "add",
        f"--ttl={seconds}s",
        *_option("reason", reason),
        "--",
        peer,
    ]
    words += _engine_words(key)
    what = f"{'the end of the quarantine' if undo else 'a quarantine'} of peer {peer}"
    if flag_of(body, "dryRun"):
        known = (await calls.call("ListPeers", admin.ListPeersRequest(state="all", peers=[peer]))).peers
        stranger = all(item.peer.address != peer for item in known)
        warning = (
            [f"warning: no engine knows peer {peer}; 'agentctl get peers' lists them"] if stranger else []
        )
        return await _would(calls, key, what, words, warning)
    request = admin.SetQuarantineRequest(
        selector=selector_of(key),
        peer=peer,
        state=QUARANTINE_STATE_CLOSED if undo else QUARANTINE_STATE_OPEN,
        author=author,
        reason=reason,
    )
    request.ttl.FromSeconds(seconds)
    await calls.call("SetQuarantine", request)
    return fitted(WriteAnswer(plain(f"{what} ordered for {_whom(key)}"), (), (), command(*words)))


WRITES: dict[str, Callable[[AdminCalls, Mapping[str, Any], str], Awaitable[bytes]]] = {
    "policy": write_policy,
    "pause": write_pause,
    "quarantine": write_quarantine,
    "draft": write_draft,
    "undo": write_undo,
}
"""The writes by their names, and what the editor asks between them; each takes the body and the author."""


async def _selects_all(calls: AdminCalls, name: str) -> bool:
    """Return whether a policy is for every engine already, so that a change of it needs no new confirmation."""
    if not name:
        return False
    found = (await calls.call("ListPolicies", admin.ListPoliciesRequest(name=name))).policies
    selectors = [json.loads(each.manifest_json)["spec"].get("selector") or {} for each in found]
    return bool(selectors) and not any(any(each.values()) for each in selectors)


def _changes(response: admin.ApplyPolicyResponse) -> Section:
    rows: list[tuple[str, ...]] = [
        (
            text.engine(engine.key),
            field.field,
            _given(field.old_value, field.old_policy),
            _given(field.new_value, field.new_policy),
        )
        for engine in response.engines
        for field in engine.fields
    ]
    if not rows and response.engines:
        # A relay does not merge policies; each agent does.
        matched: list[tuple[str, ...]] = [(text.engine(engine.key),) for engine in response.engines]
        return table_section("Matched engines", Table(("ENGINE",), matched))
    nothing = "" if rows else "no known engine would change"
    return table_section("What changes", Table(("ENGINE", "FIELD", "FROM", "TO"), rows), sentence=nothing)


def _given(value: str, policy: str) -> str:
    return f"{value} ({policy})" if value else text.NONE


async def _would(
    calls: AdminCalls, key: EngineKey | None, what: str, words: list[str], warnings: list[str] | None = None
) -> bytes:
    """Answer a dry run of an order: the engines that it would reach."""
    engines = (await calls.call("ListEngines", admin.ListEnginesRequest(selector=selector_of(key)))).engines
    if key is not None and not engines:
        raise AnswerError(404, f"engine {text.engine(key)!r} not found; 'agentctl get engines' lists them")
    rows: list[tuple[str, ...]] = [
        (
            text.engine(item.key),
            "connected" if item.connected else "stopped" if is_stopped(item) else "disconnected",
            "yes" if item.paused else "no",
        )
        for item in engines
    ]
    return fitted(
        WriteAnswer(
            plain(f"{what} would be ordered for {_whom(key)}"),
            sentences(warnings or ()),
            (table_section("Engines", Table(("ENGINE", "STATUS", "PAUSED"), rows)),),
            command(*words),
        )
    )


def _followed(sentence: str, rollout: admin.Rollout, words: list[str]) -> WriteAnswer:
    rows: list[tuple[str, ...]] = [
        (text.engine(each.key), each.state, text.one_line(each.error) or text.NONE)
        for each in rollout.engines
    ]
    table = table_section(
        "Engines", Table(("ENGINE", "STATE", "ERROR"), rows), sentence="" if rows else "no engine is known"
    )
    return WriteAnswer(plain(sentence), (), (table,), command(*words))


def _whom(key: EngineKey | None) -> str:
    return "all engines" if key is None else f"engine {text.engine(key)}"


def _engine_words(key: EngineKey | None) -> list[str]:
    return [] if key is None else [text.engine(key)]


def _option(name: str, value: str) -> list[str]:
    return [f"--{name}={value}"] if value else []
