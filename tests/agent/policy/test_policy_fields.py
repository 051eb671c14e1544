"""A policy field is the same everywhere: manifest, published schema, push, engine, flag, with equal bounds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from penstock.agent.ctl.commands.policies.fields import FIELDS
from penstock.agent.errors import ManifestError
from penstock.agent.policy.distribution.push_encoding import body_of, leaves_of
from penstock.agent.policy.manifest import parse_manifest
from penstock.agent.policy.manifest.json_schema import schema
from penstock.proto.v1.policy_pb2 import PolicyBody, ScheduledPolicy
from penstock.rules import FIELD_BOUNDS
from penstock.rules.decode import RefusedError, decode_policy

from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

_SECTIONS = [field.name for field in PolicyBody.DESCRIPTOR.fields]
_VALIDATOR = Draft202012Validator(schema())
_RECOMPUTE_OR_FAIL = {"kvLoadFailure.overBudget", "deferral.onTimeout"}
# Acting would fail requests that are recomputed today.
_NEVER_ENFORCED = {"reflexes.recomputeStorm.action"}
_PREFIXES = {
    "FailureAction": "FAILURE_ACTION_",
    "IntegrityAction": "INTEGRITY_ACTION_",
    "ReflexAction": "REFLEX_ACTION_",
}


def _leaves(descriptor: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in descriptor.fields:
        if field.message_type is None or field.message_type.full_name == "google.protobuf.Duration":
            yield prefix + field.json_name, field
        else:
            yield from _leaves(field.message_type, f"{prefix}{field.json_name}.")


LEAVES: dict[str, Any] = dict(_leaves(PolicyBody.DESCRIPTOR))
WORDS = {path: field for path, field in LEAVES.items() if field.enum_type is not None}
_DURATIONS = {path for path, field in LEAVES.items() if field.message_type is not None}
_RATIOS = {path for path, field in LEAVES.items() if field.type == field.TYPE_DOUBLE}


def _written(path: str, value: float) -> Any:
    """Return *value* as a manifest has it."""
    if path in _DURATIONS:
        return f"{value:.6f}s"
    return value if path in _RATIOS else int(value)


def _document(path: str, value: Any) -> dict[str, Any]:
    spec: Any = value
    for name in reversed(path.split(".")):
        spec = {name: spec}
    return document(**spec)


def _in_manifest(path: str, value: Any) -> bool:
    try:
        parse_manifest(json.dumps(_document(path, value)))
    except ManifestError as error:
        return path not in str(error)
    return True


def _place(body: PolicyBody, path: str) -> tuple[Message, Any]:
    """Return the message of *body* that has the last name of *path*, and its field."""
    place: Message = body
    *sections, last = path.split(".")
    for section in sections:
        place = getattr(place, next(f.name for f in place.DESCRIPTOR.fields if f.json_name == section))
    return place, next(field for field in place.DESCRIPTOR.fields if field.json_name == last)


def _accepted(path: str, body: PolicyBody) -> bool:
    """Return whether an engine takes *body*; a refusal names *path*."""
    try:
        decode_policy(ScheduledPolicy(hash="h", body=body), _SECTIONS)
    except RefusedError as error:
        return error.field != path
    return True


def _in_engine(path: str, value: float) -> bool:
    """Return whether an engine takes *value* from the wire, whatever sent it."""
    body = PolicyBody()
    place, field = _place(body, path)
    if path in _DURATIONS:
        getattr(place, field.name).FromMicroseconds(round(value * 1e6))
    else:
        setattr(place, field.name, value if path in _RATIOS else int(value))
    return _accepted(path, body)


def _just_outside(path: str) -> Iterator[float]:
    """Yield what is next to the bounds of *path*; the wire's counts have nothing below 0."""
    step = 1e-6 if path in _DURATIONS | _RATIOS else 1
    least, most = FIELD_BOUNDS[path]
    yield most + step
    if least > 0 or path in _RATIOS:
        yield least - step


def test_each_number_and_duration_has_bounds() -> None:
    """The table names the leaves of the wire that are not words, and nothing else."""
    assert set(FIELD_BOUNDS) == set(LEAVES) - set(WORDS)


def test_each_field_has_one_flag() -> None:
    """``agentctl set-policy`` sets every leaf of the wire, by one flag each."""
    assert sorted(field.path for field in FIELDS) == sorted(LEAVES)


@pytest.mark.parametrize("path", FIELD_BOUNDS)
def test_the_bounds_are_the_same_on_both_sides(path: str) -> None:
    """Agent and engine take the bounds themselves, and refuse what is next to them."""
    for value in FIELD_BOUNDS[path]:
        written = _written(path, value)
        assert _in_manifest(path, written)
        assert _in_engine(path, value)
        assert _VALIDATOR.is_valid(_document(path, written))
        assert list(leaves_of(body_of({path: written}))) == [path]
    for value in _just_outside(path):
        assert not _in_engine(path, value)
        assert not _in_manifest(path, _written(path, value))
        # A pattern cannot bound a duration.
        if path not in _DURATIONS:
            assert not _VALIDATOR.is_valid(_document(path, _written(path, value)))


@pytest.mark.parametrize("path", WORDS)
def test_the_words_are_the_same_on_both_sides(path: str) -> None:
    """Manifest, schema and flag have the words of the wire; "auto" is no fallback."""
    enum = WORDS[path].enum_type
    prefix = _PREFIXES[enum.name]
    wire = [value.name.removeprefix(prefix).lower() for value in enum.values if value.number]
    words = [
        word
        for word in wire
        if (word != "auto" or path not in _RECOMPUTE_OR_FAIL)
        and (word != "enforce" or path not in _NEVER_ENFORCED)
    ]
    (flag,) = (field for field in FIELDS if field.path == path)
    assert sorted(flag.type.choices) == sorted(words)  # type: ignore[attr-defined]
    for word in [*wire, "other"]:
        accepted = word in words
        assert _in_manifest(path, word) is accepted
        assert _VALIDATOR.is_valid(_document(path, word)) is accepted
        if word in wire:
            assert _accepted(path, body_of({path: word})) is accepted
