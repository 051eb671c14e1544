"""The published JSON Schema of what commands print: ``python -m penstock.agent.ctl.json_schema``.

Made from the message descriptors by the rules of ``views/json_values.py``. Later versions add fields, so no object is closed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from penstock.agent.ctl.command_schemas import (
    ANYTHING,
    COMMANDS,
    OTHERS,
    TEXT,
    list_of,
    message_name,
    ref,
)
from penstock.agent.policy.manifest import API_VERSION
from penstock.agent.views.json_values import MOST, FieldKind, field_kind, field_name, may_be_absent
from penstock.proto.v1 import admin_pb2 as admin

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ID = f"https://{API_VERSION.replace('/', '/schemas/')}/agentctl.json"
_TYPES = {FieldDescriptor.CPPTYPE_STRING: "string", FieldDescriptor.CPPTYPE_BOOL: "boolean"}

_SCALARS: dict[FieldKind, tuple[str, dict[str, Any]]] = {
    FieldKind.MOMENT: (
        "Moment",
        {
            "description": "RFC 3339 in UTC, always with nanoseconds: texts sort by time.",
            "type": "string",
            "format": "date-time",
            "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$",
        },
    ),
    FieldKind.DURATION: (
        "Duration",
        {"description": "Seconds, such as 1.500s.", "type": "string", "pattern": r"^-?\d+(\.\d{3,9})?s$"},
    ),
    FieldKind.ID: (
        "Id",
        {
            "description": "64 random bits, as a decimal number.",
            "type": "string",
            "pattern": r"^[1-9]\d{0,19}$",
        },
    ),
    FieldKind.SUM: (
        "Sum",
        {
            "description": "A number that may exceed 2^53 - 1, as text.",
            "type": "string",
            "pattern": r"^\d{1,20}$",
        },
    ),
    FieldKind.COUNT: (
        "Count",
        {
            "description": "Clamped to 2^53 - 1: JSON readers round larger numbers.",
            "type": "integer",
            "minimum": -MOST,
            "maximum": MOST,
        },
    ),
    FieldKind.FLOAT: (
        "Float",
        {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]},
    ),
}


_MESSAGES = (
    admin.ApplyPolicyResponse,
    admin.Bill,
    admin.EffectivePolicy,
    admin.EngineStacks,
    admin.Explanation,
    admin.Diagnosis,
    admin.ForgetResponse,
    admin.IssuePageTokenResponse,
    admin.ListAuditResponse,
    admin.ListDrillsResponse,
    admin.ListEjectionsResponse,
    admin.ListEnginesResponse,
    admin.ListEventsResponse,
    admin.ListPairsResponse,
    admin.ListPeersResponse,
    admin.ListHoldersResponse,
    admin.ListSuspectsResponse,
    admin.ListPolicyRolloutsResponse,
    admin.ListQuarantinesResponse,
    admin.ListRequestsResponse,
    admin.PolicyRollout,
    admin.Rollout,
    admin.SetEjectionResponse,
    admin.Signals,
    admin.Trace,
    admin.WhatIfResponse,
)


def schema() -> dict[str, Any]:
    """Return the schema of any command's output; ``$defs`` has one per command."""
    messages: dict[str, Any] = {}
    for message in _MESSAGES:
        _add(message.DESCRIPTOR, messages)
    status = _properties(admin.Policy.DESCRIPTOR, without=frozenset({"name", "manifest_json"}))
    definitions = {
        **COMMANDS,
        **dict(_SCALARS.values()),
        **OTHERS,
        "ManifestStatus": status,
        **dict(sorted(messages.items())),
    }
    return {
        "$schema": _DIALECT,
        "$id": _ID,
        "title": "What agentctl prints with -o json and -o yaml",
        "description": "The output of one command is $defs/COMMAND, words joined by hyphens: $defs/get-engines.",
        "anyOf": [ref(name) for name in COMMANDS],
        "$defs": definitions,
    }


def _add(descriptor: Any, found: dict[str, Any]) -> None:
    """Add the definitions of a message and its fields to *found*."""
    if message_name(descriptor) in found:
        return
    found[message_name(descriptor)] = _properties(descriptor)
    for field in descriptor.fields:
        if field_kind(field) is FieldKind.MESSAGE:
            _add(field.message_type, found)


def _properties(descriptor: Any, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    # Bytes are secrets and never printed.
    fields = [
        field
        for field in descriptor.fields
        if field.name not in without and field.type != FieldDescriptor.TYPE_BYTES
    ]
    return {
        "type": "object",
        "properties": {field_name(field): _field(field) for field in fields},
        "required": [field_name(field) for field in fields if _is_list(field) or not may_be_absent(field)],
    }


def _field(field: Any) -> dict[str, Any]:
    return list_of(_value(field)) if _is_list(field) else _value(field)


def _value(field: Any) -> dict[str, Any]:
    kind = field_kind(field)
    if kind in _SCALARS:
        return ref(_SCALARS[kind][0])
    if kind is FieldKind.MESSAGE:
        return ref(message_name(field.message_type))
    if kind is FieldKind.WORD:
        words = [value.name for value in field.enum_type.values]
        prefix = words[0].removesuffix("UNSPECIFIED")
        return {"enum": [*(word.removeprefix(prefix).lower() for word in words[1:]), "unknown"]}
    if kind is FieldKind.MAP:
        return {"type": "object", "additionalProperties": TEXT}
    if kind is FieldKind.DOCUMENT:
        return ANYTHING
    return {"type": _TYPES.get(field.cpp_type, "integer")}


def _is_list(field: Any) -> bool:
    return isinstance(field.default_value, list) and field_kind(field) is not FieldKind.MAP


def text() -> str:
    """Return the schema as the file's text."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
