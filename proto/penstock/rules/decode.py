"""Decodes a policy, within bounds of its own.

The agent has validated a push already; the engine does not rely on it. It refuses
what it does not know (a field or value of a newer agent) or does not act upon (a field
that no hook supports), with the field's path as in the manifest. The paths of a message's fields, those that
are set and those that this engine's contract lacks, are found here. Imports protobuf.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from google.protobuf.unknown_fields import UnknownFieldSet
from penstock.proto.v1.policy_pb2 import FailureAction, Push
from penstock.rules.field_bounds import FIELD_BOUNDS
from penstock.rules.policy import (
    Action,
    Deferral,
    EcLoadFailure,
    Integrity,
    IntegrityAction,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
    PolicySource,
    RecomputeStormReflex,
    ReflexAction,
    Reflexes,
    SlowPeerReflex,
    StartWaitReflex,
    Telemetry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from google.protobuf.message import Message
    from penstock.proto.v1 import policy_pb2
    from penstock.proto.v1.policy_pb2 import ScheduledPolicy

Word = TypeVar("Word", bound=StrEnum)

HASH_MAX: Final = 128
POLICIES_MAX: Final = 16
NAME_MAX: Final = 63
NAMED_FIELDS_MAX: Final = 64
FIELD_MAX: Final = 128

_UNSPECIFIED: Final[int] = FailureAction.FAILURE_ACTION_UNSPECIFIED
_ACTIONS: Final = tuple(Action)
"""In the order of the wire's numbers, from 1."""


def has_unknown(push: Push) -> bool:
    """Return whether any field, at any depth, is unknown."""
    known = Push()
    known.CopyFrom(push)
    known.DiscardUnknownFields()
    return known.ByteSize() != push.ByteSize()


def unknown_in_policy(push: Push) -> Iterator[str]:
    """Yield the unknown fields outside the orders, each of which is decoded alone (decode_push.py)."""
    yield from _own_unknown(push, "")
    for entry in push.schedule:
        yield from unknown_fields(entry)


def unknown_fields(message: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field, at any depth of *message*, that our version of the contract lacks."""
    yield from _own_unknown(message, path)
    for descriptor, value in message.ListFields():
        # Nothing depends on the names of policies: a newer agent may say more about them.
        if descriptor.message_type is None or descriptor.name == "policies":
            continue
        # The body's fields are the spec's; the wrapping around it has no place in the manifest.
        wrapping = descriptor.name in ("body", "observed")
        inner = path if wrapping else join(path, descriptor.json_name)
        for item in value if _is_repeated(descriptor) else (value,):
            yield from unknown_fields(item, inner)


def _own_unknown(message: Any, path: str) -> Iterator[str]:
    # The stubs lack __iter__.
    for field in cast("Iterable[Any]", UnknownFieldSet(message)):
        yield join(path, str(field.field_number))


def _is_repeated(descriptor: Any) -> bool:
    # `is_repeated` came with protobuf 6.31, and `label` warns from there on.
    repeated = getattr(descriptor, "is_repeated", None)
    return bool(repeated) if repeated is not None else descriptor.label == descriptor.LABEL_REPEATED


def leaves(message: Message, name: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield dotted name and manifest path of every field set in *message* that is no section of fields."""
    for descriptor, value in message.ListFields():
        inner_name, inner_path = join(name, descriptor.name), join(path, descriptor.json_name)
        kind = descriptor.message_type
        if kind is None or kind.full_name == "google.protobuf.Duration" or not value.ListFields():
            yield inner_name, inner_path
        else:
            yield from leaves(value, inner_name, inner_path)


def join(path: str, name: str) -> str:
    """Return the path of the field *name* of what *path* leads to."""
    return f"{path}.{name}" if path else name


class RefusedError(Exception):
    """A policy cannot be put in force; the text is an operator's.

    Attributes:
        field: path of the field in a policy's spec (``kvLoadFailure.action``); empty for the whole.

    """

    def __init__(self, field: str, error: str) -> None:
        super().__init__(error)
        self.field = field


def decode_policy(entry: ScheduledPolicy, fields: Collection[str]) -> Policy:
    """Return the policy of one entry of a schedule.

    Args:
        entry: as it was received.
        fields: what this engine acts upon, as dotted names of ``PolicyBody``.

    Raises:
        RefusedError: a value is out of bounds, or a field or value is not supported by this engine.

    """
    body = _body(entry.body, fields)
    observed = _body(entry.observed, fields) if entry.HasField("observed") else None
    if len(entry.hash) > HASH_MAX:
        raise RefusedError("", f"the hash has {len(entry.hash)} characters; at most {HASH_MAX} are accepted")
    if not entry.hash and (body or observed is not None):
        raise RefusedError("", "a policy that sets something has no hash")
    return Policy(
        **(body or {}),
        hash=entry.hash,
        observed=None if observed is None else PolicyBody(**observed),
        sources=tuple(_sources(entry)),
    )


def _sources(entry: ScheduledPolicy) -> Iterator[PolicySource]:
    """Yield the policies that the entry names, as far as a client may read them; a bad name refuses no policy."""
    for source in entry.policies[:POLICIES_MAX]:
        if 0 < len(source.name) <= NAME_MAX and source.name.isascii() and source.name.isprintable():
            fields = frozenset(path for path in source.fields[:NAMED_FIELDS_MAX] if len(path) <= FIELD_MAX)
            yield PolicySource(source.name, source.generation, fields)


def _body(message: policy_pb2.PolicyBody, fields: Collection[str]) -> dict[str, Any]:
    """Return the fields of a body that are set, by the name of the dataclass's."""
    sections = message.ListFields()
    if any(descriptor.name not in fields for descriptor, _ in sections):
        _check_leaves(message, fields)
    found = {descriptor.name: _SECTIONS[descriptor.name](value) for descriptor, value in sections}
    kv = found.get("kv_load_failure")
    if kv is not None and kv.action is Action.AUTO and not _acts_on_tokens(fields):
        raise RefusedError(
            "kvLoadFailure.action", "this engine cannot decide 'auto' per request; use recompute or fail"
        )
    return found


def _check_leaves(message: Message, fields: Collection[str]) -> None:
    """Refuse what this engine does not act upon, where it does not act upon whole sections."""
    for name, path in leaves(message, "", ""):
        if not any(name == known or name.startswith(f"{known}.") for known in fields):
            raise RefusedError(
                path,
                f"this engine does not act upon {path}: its penstock or its vLLM has no way to"
                " (docs/compatibility.md); remove the field for this engine",
            )


def _acts_on_tokens(fields: Collection[str]) -> bool:
    return "kv_load_failure" in fields or "kv_load_failure.max_recompute_tokens" in fields


def _kv(message: policy_pb2.KvLoadFailure) -> KvLoadFailure:
    path = "kvLoadFailure"
    budget = message.recompute_budget
    return KvLoadFailure(
        action=_action(message.action, f"{path}.action"),
        max_recompute_tokens=_number(message, "max_recompute_tokens", path),
        tokens_per_second=_number(budget, "tokens_per_second", f"{path}.recomputeBudget"),
        over_budget=_fallback(message.over_budget, f"{path}.overBudget"),
    )


def _ec(message: policy_pb2.EcLoadFailure) -> EcLoadFailure:
    return EcLoadFailure(
        action=_action(message.action, "ecLoadFailure.action"),
        max_recompute_items=_number(message, "max_recompute_items", "ecLoadFailure"),
    )


def _deferral(message: policy_pb2.Deferral) -> Deferral:
    return Deferral(
        max_start_wait=_duration(message, "max_start_wait", "deferral"),
        max_transfer_wait=_duration(message, "max_transfer_wait", "deferral"),
        on_timeout=_fallback(message.on_timeout, "deferral.onTimeout"),
    )


def _quarantine(message: policy_pb2.PeerQuarantine) -> PeerQuarantine:
    path = "peerQuarantine"
    return PeerQuarantine(
        failures=_number(message, "failures", path),
        window=_duration(message, "window", path),
        duration=_duration(message, "duration", path),
        max_peers_percent=_number(message, "max_peers_percent", path),
    )


def _telemetry(message: policy_pb2.Telemetry) -> Telemetry:
    ratio = message.trace_sample_ratio if message.HasField("trace_sample_ratio") else None
    if ratio is not None and not _is_within("telemetry.traceSampleRatio", ratio):
        raise RefusedError(
            "telemetry.traceSampleRatio", f"traceSampleRatio is {ratio:g}; use a number from 0 to 1"
        )
    return Telemetry(
        trace_sample_ratio=ratio,
        failure_log_interval=_duration(message, "failure_log_interval", "telemetry"),
    )


def _integrity(message: policy_pb2.Integrity) -> Integrity:
    ratio = message.sample_ratio if message.HasField("sample_ratio") else None
    if ratio is not None and not _is_within("integrity.sampleRatio", ratio):
        raise RefusedError(
            "integrity.sampleRatio", f"integrity.sampleRatio is {ratio:g}; use a number from 0 to 1"
        )
    return Integrity(sample_ratio=ratio, action=_word(message.action, IntegrityAction, "integrity.action"))


def _reflexes(message: policy_pb2.Reflexes) -> Reflexes:
    found = Reflexes(per_minute=_number(message, "per_minute", "reflexes"))
    if message.HasField("start_wait"):
        start, path = message.start_wait, "reflexes.startWait"
        found = replace(
            found,
            start_wait=StartWaitReflex(
                action=_word(start.action, ReflexAction, f"{path}.action"),
                factor=_fraction(start, "factor", path),
                min_wait=_duration(start, "min_wait", path),
            ),
        )
    if message.HasField("slow_peer"):
        slow, path = message.slow_peer, "reflexes.slowPeer"
        action = _word(slow.action, ReflexAction, f"{path}.action")
        found = replace(found, slow_peer=SlowPeerReflex(action, _fraction(slow, "factor", path)))
    if message.HasField("recompute_storm"):
        storm, path = message.recompute_storm, "reflexes.recomputeStorm"
        action = _word(storm.action, ReflexAction, f"{path}.action")
        if action is ReflexAction.ENFORCE:
            raise RefusedError(f"{path}.action", f"{path}.action is enforce; it can only observe")
        found = replace(
            found, recompute_storm=RecomputeStormReflex(action, _duration(storm, "queue_wait", path))
        )
    return found


_SECTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "kv_load_failure": _kv,
    "ec_load_failure": _ec,
    "deferral": _deferral,
    "peer_quarantine": _quarantine,
    "telemetry": _telemetry,
    "integrity": _integrity,
    "reflexes": _reflexes,
}


def _action(number: int, path: str) -> Action | None:
    if number == _UNSPECIFIED:
        return None
    if not 0 < number <= len(_ACTIONS):
        raise RefusedError(
            path,
            f"{path} has the value {number}, which this engine does not know; use {_choice(list(Action))}",
        )
    return _ACTIONS[number - 1]


def _fallback(number: int, path: str) -> Action | None:
    action = _action(number, path)
    if action is Action.AUTO:
        raise RefusedError(path, f"{path} is auto; use {_choice([Action.RECOMPUTE, Action.FAIL])}")
    return action


def _word(number: int, words: type[Word], path: str) -> Word | None:
    known = list(words)
    if not 0 <= number <= len(known):
        raise RefusedError(
            path,
            f"{path} has the value {number}, which this engine does not know; use {_choice(known)}",
        )
    return known[number - 1] if number else None


def _choice(actions: Sequence[StrEnum]) -> str:
    return " or ".join(action.value for action in actions)


def _number(message: Message, name: str, path: str) -> int | None:
    if not message.HasField(name):
        return None
    value = int(getattr(message, name))
    path = _path_of(message, name, path)
    if not _is_within(path, value):
        least, most = FIELD_BOUNDS[path]
        raise RefusedError(path, f"{path} is {value}; use a number from {least} to {most}")
    return value


def _fraction(message: Message, name: str, path: str) -> float | None:
    if not message.HasField(name):
        return None
    value = float(getattr(message, name))
    path = _path_of(message, name, path)
    if not _is_within(path, value):
        least, most = FIELD_BOUNDS[path]
        raise RefusedError(path, f"{path} is {value:g}; use a number from {least:g} to {most:g}")
    return value


def _duration(message: Message, name: str, path: str) -> float | None:
    if not message.HasField(name):
        return None
    value = in_seconds(getattr(message, name))
    path = _path_of(message, name, path)
    if not _is_within(path, value):
        least, most = FIELD_BOUNDS[path]
        raise RefusedError(path, f"{path} is {value:g} s; use a time from {least:g} s to {most:g} s")
    return value


def _path_of(message: Message, name: str, path: str) -> str:
    return join(path, message.DESCRIPTOR.fields_by_name[name].json_name)


def _is_within(path: str, value: float) -> bool:
    least, most = FIELD_BOUNDS[path]
    return least <= value <= most


def in_seconds(duration: Any) -> float:
    """Return a ``google.protobuf.Duration`` in seconds."""
    return float(duration.seconds + duration.nanos / 1e9)
