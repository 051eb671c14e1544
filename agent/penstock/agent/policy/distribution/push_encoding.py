"""Encodes policies and orders as messages of a push; fields map by their JSON names."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.duration_pb2 import Duration
from penstock.agent.parsing import format_duration, parse_duration
from penstock.proto.names import label, number
from penstock.proto.v1.common_pb2 import PolicySource as PolicySourceMessage
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN
from penstock.proto.v1.policy_pb2 import FailureAction, IntegrityAction, PolicyBody, ScheduledPolicy
from penstock.proto.v1.policy_pb2 import FaultDrill as DrillMessage
from penstock.proto.v1.policy_pb2 import QuarantineOrder as QuarantineMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from google.protobuf.message import Message
    from penstock.agent.model import PolicySource
    from penstock.agent.policy.manifest import Leaf, Leaves, ScheduleStep
    from penstock.agent.policy.orders import FaultDrill, QuarantineOrder

MAX_ENTRIES = 64
# An engine keeps that many, and most policies have one.
_MAX_POLICIES = 16
_ENUMS: Final[dict[str, Any]] = {"FailureAction": FailureAction, "IntegrityAction": IntegrityAction}


def body_of(leaves: Leaves) -> PolicyBody:
    """Return the message of *leaves*, which must be validated."""
    body = PolicyBody()
    for path, value in leaves.items():
        *sections, last = path.split(".")
        place: Message = body
        for section in sections:
            place = getattr(place, _field(place, section).name)
        field = _field(place, last)
        if field.message_type is not None:
            getattr(place, field.name).FromTimedelta(parse_duration(str(value)))
        elif field.enum_type is not None:
            setattr(place, field.name, number(_ENUMS[field.enum_type.name], str(value)))
        else:
            setattr(place, field.name, value)
    return body


def leaves_of(body: PolicyBody) -> Leaves:
    """Return the fields of *body*; the inverse of :func:`body_of`."""
    return dict(_walk(body, ""))


def schedule_of(
    steps: Sequence[ScheduleStep], sources: Sequence[Sequence[PolicySource]] = ()
) -> list[ScheduledPolicy]:
    """Return the schedule of a push; empty if nothing is set now or later.

    With *sources*, the policies of each step, it names the highest 16 of each, without their authors.

    An engine accepts 64 entries: of more steps, the first 63 and the last. The agent pushes again when a step
    begins, before the difference matters.
    """
    if len(steps) == 1 and not steps[0].merged.hash:
        return []
    if len(steps) > MAX_ENTRIES:
        steps = [*steps[: MAX_ENTRIES - 1], steps[-1]]
        sources = [*sources[: MAX_ENTRIES - 1], *sources[-1:]]
    entries = []
    for index, step in enumerate(steps):
        entry = ScheduledPolicy(hash=step.merged.hash, body=body_of(step.merged.leaves()))
        observed = step.merged.observed_leaves()
        if observed is not None:
            entry.observed.CopyFrom(body_of(observed))
        if sources:
            entry.policies.extend(map(_source_message, sources[index][:_MAX_POLICIES]))
        if index + 1 < len(steps):
            entry.valid_for.FromTimedelta(time_left(step.begins, steps[index + 1].begins))
        entries.append(entry)
    return entries


def _source_message(source: PolicySource) -> PolicySourceMessage:
    return PolicySourceMessage(name=source.name, generation=source.generation, fields=source.fields)


def time_left(now: datetime, until: datetime) -> timedelta:
    """Return the duration of a schedule entry, at least 1 µs: zero would mean for ever."""
    return max(until - now, timedelta(microseconds=1))


def drill_message(drill: FaultDrill, now_unix_nano: int) -> DrillMessage:
    """Return the message of a drill, with its remaining time."""
    return DrillMessage(
        id=drill.id,
        channel=drill.channel,  # type: ignore[arg-type]
        mode=drill.mode,  # type: ignore[arg-type]
        rate=drill.rate,
        peer=drill.peer,
        delay=_nanoseconds(drill.delay_nano) if drill.delay_nano else None,
        valid_for=_nanoseconds(drill.left_nano(now_unix_nano)),
    )


def quarantine_message(order: QuarantineOrder, now_unix_nano: int) -> QuarantineMessage:
    """Return the message of a quarantine order, with its remaining time."""
    return QuarantineMessage(
        id=order.id,
        peer=order.peer,
        state=QUARANTINE_STATE_OPEN if order.quarantined else QUARANTINE_STATE_CLOSED,
        valid_for=_nanoseconds(order.left_nano(now_unix_nano)),
    )


def _nanoseconds(nano: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(nano)
    return message


def _field(message: Message, json_name: str) -> Any:
    return next(field for field in message.DESCRIPTOR.fields if field.json_name == json_name)


def _walk(message: Message, prefix: str) -> Iterable[tuple[str, Leaf]]:
    for field, value in message.ListFields():
        path = prefix + field.json_name
        if isinstance(value, Duration):
            yield path, format_duration(value.ToTimedelta())
        elif field.message_type is not None:
            yield from _walk(value, f"{path}.")
        elif field.enum_type is not None:
            yield path, label(_ENUMS[field.enum_type.name], value)
        else:
            yield path, _scalar(value)


def _scalar(value: Any) -> Leaf:
    return value if isinstance(value, int | float) else str(value)
