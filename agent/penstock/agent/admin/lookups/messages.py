"""Converts the agent's objects to messages of the admin service, and the fields that orders share to checked values."""

from __future__ import annotations

import json
import re
import secrets
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.errors import ContractError
from penstock.agent.parsing import format_duration, format_labels
from penstock.agent.policy.manifest import unflatten
from penstock.agent.policy.store import MAX_TEXT, policy_sources
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage
from penstock.proto.v1.common_pb2 import PolicySource as PolicySourceMessage
from penstock.proto.v1.common_pb2 import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from penstock.agent.model import EngineKey, PolicySource
    from penstock.agent.parsing import Selection, Target
    from penstock.agent.policy.distribution import EngineProgress, Progress
    from penstock.agent.policy.manifest import FieldSource, Leaves, Merged, ScheduleStep
    from penstock.agent.policy.orders import Ejection, Pause
    from penstock.agent.policy.store import AuditEntry, StoredPolicy
    from penstock.agent.stalls import Stall

    # The policies behind a hash that is in force in an engine now.
    PolicyNames: TypeAlias = Callable[[EngineKey, str], Iterable[PolicySource]]
    from google.protobuf.duration_pb2 import Duration

_MOST, _MOST_SIGNED = (1 << 64) - 1, (1 << 63) - 1
MAX_UINT32 = (1 << 32) - 1


_SHORTEST = timedelta(seconds=1)
_PEER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]{1,253}):\d{1,5}")


def clamp_unsigned(number: int, most: int = _MOST) -> int:
    """Clamp *number* to 0..*most* (64 bits): sums of engine counts may exceed the field."""
    return min(max(number, 0), most)


def clamp_signed(number: int | None) -> int | None:
    """Clamp *number* to a signed field of 64 bits; None for None."""
    return None if number is None else min(max(number, -_MOST_SIGNED), _MOST_SIGNED)


def key_message(key: EngineKey) -> EngineKeyMessage:
    """Return *key* as a message."""
    return EngineKeyMessage(server=key.server, engine=key.engine)


def selector_message(selection: Selection) -> admin.EngineSelector:
    """Return *selection* as a message."""
    return admin.EngineSelector(
        labels=format_labels(selection.requirements),
        models=selection.models,
        engines=map(key_message, sorted(selection.keys)),
    )


def timestamp_message(unix_nano: int) -> Timestamp | None:
    """Return a timestamp; None for 0, which leaves the field unset."""
    if not unix_nano:
        return None
    message = Timestamp()
    message.FromNanoseconds(unix_nano)
    return message


def timestamp_of(moment: datetime) -> Timestamp:
    """Return a timestamp of a datetime with a time zone."""
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def role_of(word: str) -> Any:
    """Return the ``Role`` of a label, ``unspecified`` included, and for the role of a newer engine."""
    try:
        return Role.Value(f"ROLE_{word.upper()}")
    except ValueError:
        return Role.ROLE_UNSPECIFIED


def spec_json(leaves: Leaves) -> str:
    """Return *leaves* as JSON of a manifest's spec."""
    return json.dumps(unflatten(leaves), sort_keys=True)


def source_messages(sources: Iterable[PolicySource]) -> list[PolicySourceMessage]:
    """Return the policies behind a hash as messages."""
    return [PolicySourceMessage(**source._asdict()) for source in sources]


def delivery_message(generation: int, progress: Progress, names: PolicyNames) -> admin.Rollout:
    """Return the progress of a delivery; *names* gives the policies behind an engine's hash."""
    engines = [engine_delivery(engine, names) for engine in progress.engines]
    return admin.Rollout(store_generation=generation, engines=engines, done=progress.done)


def engine_delivery(
    engine: EngineProgress, names: PolicyNames = lambda _key, _hash: ()
) -> admin.EngineRollout:
    """Return the delivery state of one engine; as :func:`delivery_message`."""
    message = admin.EngineRollout(
        key=key_message(engine.key),
        state=engine.state,
        hash=engine.hash,
        error=engine.error,
        field=engine.field,
        wanted_hash=engine.wanted,
        policies=source_messages(names(engine.key, engine.hash)),
        wanted_policies=source_messages(names(engine.key, engine.wanted)),
    )
    if engine.took is not None:
        message.took.FromTimedelta(timedelta(seconds=max(engine.took, 0.0)))
    return message


def stall_message(stall: Stall) -> admin.Stall:
    """Return a stall as the agent sees it."""
    return admin.Stall(
        kind=stall.kind,
        peer=stall.peer,
        count=clamp_unsigned(stall.count, MAX_UINT32),
        since=timestamp_message(int(stall.since * 1e9)),
        sentence=stall.sentence,
        until=timestamp_message(int(stall.until * 1e9)) if stall.until else None,
    )


def pause_message(pause: Pause) -> admin.Pause:
    """Return a pause as ordered."""
    return admin.Pause(
        author=pause.author,
        reason=pause.reason,
        since=timestamp_message(pause.began_unix_nano),
        until=timestamp_message(pause.ends_unix_nano),
    )


def ejection_message(order: Ejection, *, in_force: bool) -> admin.Ejection:
    """Return an order that takes a server out of rotation; *in_force*: its front ends say so."""
    return admin.Ejection(
        since=timestamp_message(order.began_unix_nano),
        until=timestamp_message(order.ends_unix_nano),
        author=order.author,
        reason=order.reason,
        in_force=in_force,
    )


def audit_message(entry: AuditEntry) -> admin.AuditEntry:
    """Return an entry of the audit log."""
    change = entry.change
    return admin.AuditEntry(
        id=entry.id,
        time=timestamp_message(entry.time_unix_nano),
        author=change.author,
        action=change.action,
        name=change.name,
        reason=change.reason,
        old_generation=change.old_generation,
        new_generation=change.new_generation,
        old_hash=entry.old_hash,
        new_hash=entry.new_hash,
        old_manifest_json=change.old_manifest,
        new_manifest_json=change.new_manifest,
    )


def effective_message(
    target: Target, steps: Sequence[ScheduleStep], stored: Iterable[StoredPolicy]
) -> admin.EffectivePolicy:
    """Return a schedule, with the policy of *stored* that sets each field of its current step."""
    policies = {policy.manifest.name: policy for policy in stored}
    merged = steps[0].merged
    observed = merged.observed_leaves()
    return admin.EffectivePolicy(
        key=key_message(target.key),
        hash=merged.hash,
        spec_json=spec_json(merged.leaves()),
        observed_spec_json="" if observed is None else spec_json(observed),
        fields=[
            admin.FieldChange(field=path, new_value=str(given.value), new_policy=given.policy)
            for path, given in _fields(merged).items()
        ],
        schedule=[
            admin.EffectivePolicy.Step(
                hash=step.merged.hash,
                spec_json=spec_json(step.merged.leaves()),
                begins=timestamp_of(step.begins),
                policies=source_messages(policy_sources(step.merged, policies)),
            )
            for step in steps
        ],
        policies=source_messages(policy_sources(merged, policies)),
    )


def engine_change(old: Merged, new: Merged) -> admin.EngineChange | None:
    """Return the field changes from *old* to *new*, without an engine's key; None if there are none.

    Observed fields have the prefix ``observed.``.
    """
    before, after = _fields(old), _fields(new)
    changes = [
        _field_change(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    if not changes:
        return None
    return admin.EngineChange(old_hash=old.hash, new_hash=new.hash, fields=changes)


def _field_change(path: str, old: FieldSource | None, new: FieldSource | None) -> admin.FieldChange:
    return admin.FieldChange(
        field=path,
        old_value="" if old is None else str(old.value),
        new_value="" if new is None else str(new.value),
        old_policy="" if old is None else old.policy,
        new_policy="" if new is None else new.policy,
    )


def _fields(merged: Merged) -> Mapping[str, FieldSource]:
    observed = merged.observed or {}
    return dict(merged.body) | {
        f"observed.{path}": given for path, given in observed.items() if merged.body.get(path) != given
    }


def new_order_id() -> str:
    """Return a random id of 8 hex digits."""
    return secrets.token_hex(4)


def author_and_reason(author: str, reason: str) -> dict[str, str]:
    """Return both as fields of an order, cut to the audit log's limit."""
    return {"author": author[:MAX_TEXT], "reason": reason[:MAX_TEXT]}


def checked_peer(peer: str) -> str:
    """Return *peer*.

    Raises:
        ContractError: it is not ``host:port``.

    """
    if not _PEER.fullmatch(peer):
        raise ContractError(
            f"peer {peer!r} is not valid; give its side channel as host:port ('agentctl get peers' lists them)"
        )
    return peer


def timedelta_of(duration: Duration) -> timedelta:
    """Return *duration*, clamped to Python's range."""
    try:
        return duration.ToTimedelta()
    except OverflowError:
        return timedelta.max if duration.seconds > 0 else timedelta.min


def checked_ttl(ttl: Duration, most: timedelta, what: str) -> int:
    """Return *ttl* in nanoseconds.

    Raises:
        ContractError: it is not between 1 s and *most*; *what* names the order in the sentence.

    """
    given = timedelta_of(ttl)
    if not _SHORTEST <= given <= most:
        raise ContractError(
            f"the ttl of {what} is {format_duration(given)}; "
            f"give one from {format_duration(_SHORTEST)} to {format_duration(most)}"
        )
    return ttl.ToNanoseconds()


def server_ejections(engines: Iterable[admin.Engine]) -> admin.ListEjectionsResponse:
    """Return the servers of *engines* that an order takes out of rotation, or a front end of which still is."""
    answer = admin.ListEjectionsResponse()
    servers = set()
    for engine in sorted(engines, key=lambda each: (each.key.server, each.key.engine)):
        if engine.HasField("ejection") and engine.key.server not in servers:
            servers.add(engine.key.server)
            answer.ejections.add(key=engine.key, order=engine.ejection)
    return answer
