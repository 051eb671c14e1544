"""``WhatIf``: the recorded loads of each engine, replayed against other policies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.agent.admin.calls.events import read_in_turn, since_unix_nano
from penstock.agent.admin.calls.policies import named_manifest
from penstock.agent.admin.lookups import EventScan, key_message, messages, selection_of, source_target
from penstock.agent.errors import ManifestError
from penstock.agent.journal import ReadBudget
from penstock.agent.policy.distribution import body_of
from penstock.agent.policy.manifest import (
    check_manifest,
    merge_policies,
    policies_selecting,
    read_json,
)
from penstock.agent.policy.store import MAX_POLICIES
from penstock.agent.replay import KINDS, OwnOutcomes, Recording, acting, replay
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.policy_pb2 import PolicyBody, ScheduledPolicy
from penstock.rules import NO_POLICY, Outcome, reflex_rules
from penstock.rules.decode import RefusedError, decode_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Selection, Target
    from penstock.agent.policy.manifest import Manifest, Merged
    from penstock.agent.replay import Counts, ReflexCounts, Replayed
    from penstock.rules import Policy

_MAX_ENTRIES = 100_000
_MAX_UINT64 = (1 << 64) - 1
_READ_BYTES, _READ_SECONDS = 256 << 20, 6.0
_FIELDS: Final = tuple(field.name for field in PolicyBody.DESCRIPTOR.fields)
_OWN: Final = {"recompute": Outcome.RECOMPUTED, "fail": Outcome.FAILED}


async def what_if(agent: AgentContext, request: admin.WhatIfRequest) -> admin.WhatIfResponse:
    """Return what the recorded loads would have become under the given policies.

    A given policy in mode observe is replayed as if it was enforced.

    Raises:
        ManifestError: a manifest is invalid, or a name comes twice.
        ContractError: an invalid selector.

    """
    selection = selection_of(request.selector)
    # A second of a core, for the largest.
    given = await asyncio.to_thread(_given, request.manifests_json)
    present = [] if request.only else [policy.manifest for policy in agent.store.policies()]
    chosen = [each for each in present if each.name not in given and not each.expired(agent.now)]
    chosen += given.values()
    since, now = since_unix_nano(request, agent.clock()), int(agent.clock() * 1e9)
    own = {
        view.key: _OWN.get(view.facts.kv_load_failure_policy)
        for view in agent.registry.engines()
        if view.facts is not None
    }

    def read(reader: Reader) -> admin.WhatIfResponse:
        response, found = _read(reader, since, selection)
        for target, recording in found:
            recorded = recording.loads()
            if not recorded.loads:
                continue
            merged = merge_policies(policies_selecting(chosen, target))
            policy = _policy(merged)
            rules = reflex_rules(policy)
            result = replay(
                recorded,
                policy,
                OwnOutcomes(kv=own.get(target.key)),
                now,
                acting(rules) if request.reflexes else rules,
            )
            response.engines.append(_engine(target.key, merged, result))
        return response

    return await read_in_turn(agent, read)


def _given(texts: Sequence[str]) -> dict[str, Manifest]:
    if len(texts) > MAX_POLICIES:
        raise ManifestError(f"{len(texts)} policies were given, the limit is {MAX_POLICIES}")
    given: dict[str, Manifest] = {}
    for number, text in enumerate(texts, 1):
        place = f"manifest {number}"
        manifest = named_manifest(place, read_json(text, place))
        if manifest.name in given:
            raise ManifestError(f"policy {manifest.name!r} was given twice; keep one")
        document = manifest.document()
        document["spec"].pop("mode", None)
        given[manifest.name] = check_manifest(document)
    return given


def _read(
    reader: Reader, since: int, selection: Selection
) -> tuple[admin.WhatIfResponse, list[tuple[Target, Recording]]]:
    """Return the answer's frame, and what was recorded of each selected engine, by its newest labels."""
    allowance = ReadBudget(_READ_BYTES, _READ_SECONDS)
    rows = reader.scan(kinds=KINDS, since_unix_nano=since, limit=_MAX_ENTRIES + 1, allowance=allowance)
    scan = EventScan(reader, rows, events=_MAX_ENTRIES, allowance=allowance)
    targets: dict[EngineKey, Target] = {}
    found: dict[EngineKey, Recording] = {}
    entries = 0
    for each in scan:
        entries += 1
        key = each.source.key
        if key not in targets:
            targets[key] = source_target(each.source)
            if selection.matches(targets[key]):
                found[key] = Recording()
        if key in found:
            found[key].add(each.event)
    response = admin.WhatIfResponse(
        entries=entries,
        truncated=scan.cut,
        unreadable_batches=messages.clamp_unsigned(scan.unreadable, messages.MAX_UINT32),
    )
    return response, [(targets[key], found[key]) for key in sorted(found)]


def _policy(merged: Merged) -> Policy:
    """Return the merged policy as an engine would decode it.

    Raises:
        ManifestError: an engine would refuse it.

    """
    if not merged.hash:
        return NO_POLICY
    try:
        entry = ScheduledPolicy(hash=merged.hash, body=body_of(merged.leaves()))
        observed = merged.observed_leaves()
        if observed is not None:
            entry.observed.CopyFrom(body_of(observed))
        return decode_policy(entry, _FIELDS)
    except RefusedError as error:
        raise ManifestError(f"{error.field}: {error}" if error.field else str(error)) from None


def _engine(key: EngineKey, merged: Merged, result: Replayed) -> admin.WhatIfEngine:
    engine = admin.WhatIfEngine(
        key=key_message(key),
        policies=sorted({given.policy for given in merged.body.values()}),
        was=_counts(result.was),
        would=_counts(result.would),
        notes=[
            admin.WhatIfNote(loads=number, text=note.value) for note, number in result.notes.most_common()
        ],
    )
    for address in sorted({*result.peers_was, *result.peers_would}):
        peer = engine.peers.add(address=address)
        was, would = result.peers_was.get(address), result.peers_would.get(address)
        peer.was_times, peer.would_times = was.times if was else 0, would.times if would else 0
        _set(peer.was, was.total_ns if was else 0)
        _set(peer.would, would.total_ns if would else 0)
    for field, counts in result.reflexes.items():
        engine.reflexes.append(_reflex(field, counts))
    return engine


def _reflex(field: str, counts: ReflexCounts) -> admin.WhatIfReflex:
    message = admin.WhatIfReflex(field=field, acts=counts.acts)
    for each in message.DESCRIPTOR.fields:
        if each.name not in ("field", "acts", "saved", "lost"):
            setattr(message, each.name, messages.clamp_unsigned(getattr(counts, each.name)))
    _set(message.saved, counts.saved_ns)
    _set(message.lost, counts.lost_ns)
    return message


def _counts(counts: Counts) -> admin.WhatIfCounts:
    message = admin.WhatIfCounts()
    for field in message.DESCRIPTOR.fields:
        if field.name != "waited":
            setattr(message, field.name, messages.clamp_unsigned(getattr(counts, field.name)))
    _set(message.waited, counts.waited_ns)
    return message


def _set(duration: Duration, nano: int) -> None:
    # Sums of an engine's times may be more than a duration can say.
    duration.FromNanoseconds(min(nano, _MAX_UINT64))
