"""The schedule of each engine, computed once until the store changes, and its encoding as messages of a push.

Fields map by their JSON names.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from google.protobuf.duration_pb2 import Duration
from penstock.agent.parsing import format_duration, parse_duration
from penstock.agent.policy.manifest import ScheduleStep, build_schedule, policies_selecting
from penstock.agent.policy.store import policy_sources
from penstock.proto.names import label, number
from penstock.proto.v1.common_pb2 import PolicySource as PolicySourceMessage
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN
from penstock.proto.v1.policy_pb2 import (
    FailureAction,
    IntegrityAction,
    PolicyBody,
    Push,
    ReflexAction,
    ScheduledPolicy,
)
from penstock.proto.v1.policy_pb2 import FaultDrill as DrillMessage
from penstock.proto.v1.policy_pb2 import QuarantineOrder as QuarantineMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from google.protobuf.message import Message
    from penstock.agent.model import EngineKey, PolicySource
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Leaf, Leaves
    from penstock.agent.policy.orders import FaultDrill, QuarantineOrder
    from penstock.agent.policy.store import Store, StoredPolicy


class PolicySchedule:
    """The schedule of the engines that the same policies select; valid until its first step ends.

    Attributes:
        hashes: of its steps, in order, from the current one.
        begins: start of each step but the first, seconds since the epoch.
        sources: the policies that each of its steps was merged from.

    """

    def __init__(self, steps: tuple[ScheduleStep, ...], policies: Mapping[str, StoredPolicy]) -> None:
        """Keep *steps*, which were merged from some of *policies*."""
        self._steps = steps
        self.hashes = tuple(step.merged.hash for step in steps)
        self.begins = tuple(step.begins.timestamp() for step in steps[1:])
        self.sources: tuple[tuple[PolicySource, ...], ...] = tuple(
            policy_sources(step.merged, policies) for step in steps
        )
        # With and without the names of policies.
        self._pushes: dict[bool, Push] = {}
        self._encoded: dict[bool, bytes] = {}

    def at(self, now: datetime) -> tuple[ScheduleStep, ...]:
        """Return its steps; the first begins *now*."""
        return (ScheduleStep(now, self._steps[0].merged), *self._steps[1:])

    def holds(self, now: datetime) -> bool:
        """Return whether its first step is in force at *now*."""
        return self._steps[0].begins <= now and (len(self._steps) == 1 or now < self._steps[1].begins)

    def encoded(self, now: datetime, *, named: bool = False) -> bytes:
        """Return a serialized ``Push`` of only the schedule, for a push sent *now*; *named*: with the names of policies.

        Concatenated serialized messages parse as one message with all their fields.
        """
        timed = len(self._steps) > 1
        push = self._pushes.get(named)
        if push is None:
            push = Push(schedule=schedule_of(self._steps, self.sources if named else ()))
            self._pushes[named] = push
            self._encoded[named] = b"" if timed else push.SerializeToString()
        if not timed:
            return self._encoded[named]
        # Only this field depends on the time.
        push.schedule[0].valid_for.FromTimedelta(time_left(now, self._steps[1].begins))
        return push.SerializeToString()


class EffectivePolicies:
    """The schedules of all engines under one store, until it changes or the time of day is set. One loop."""

    def __init__(self, store: Store) -> None:
        """Read *store*."""
        self._store = store
        # The schedules are of this generation, and of a clock that was set so often.
        self._stamp = (-1, 0)
        self._policies: dict[str, StoredPolicy] = {}
        self._of_engine: dict[EngineKey, tuple[Target, PolicySchedule]] = {}
        # By the texts of the selecting policies; unused ones are dropped.
        self._shared: WeakValueDictionary[tuple[str, ...], PolicySchedule] = WeakValueDictionary()

    def of(self, target: Target, now: datetime) -> PolicySchedule:
        """Return the schedule of *target*; its first step is in force at *now*."""
        stamp = self._store.generation, self._store.clock_steps()
        if stamp != self._stamp:
            self._stamp = stamp
            self._policies = {policy.manifest.name: policy for policy in self._store.policies()}
            self._of_engine.clear()
            self._shared.clear()
        known = self._of_engine.get(target.key)
        if known is not None and known[0] == target and known[1].holds(now):
            return known[1]
        found = self._find(target, now)
        self._of_engine[target.key] = target, found
        return found

    def forget(self, key: EngineKey) -> None:
        """Forget an engine."""
        self._of_engine.pop(key, None)

    def _find(self, target: Target, now: datetime) -> PolicySchedule:
        selected = policies_selecting((policy.manifest for policy in self._policies.values()), target)
        texts = tuple(policy.canonical for policy in selected)
        found = self._shared.get(texts)
        if found is None or not found.holds(now):
            found = self._shared[texts] = PolicySchedule(
                build_schedule(selected, now, self._store.end_of), self._policies
            )
        return found


MAX_ENTRIES = 64
# An engine keeps that many, and most policies have one.
_MAX_POLICIES = 16
_ENUMS: Final[dict[str, Any]] = {
    "FailureAction": FailureAction,
    "IntegrityAction": IntegrityAction,
    "ReflexAction": ReflexAction,
}


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
