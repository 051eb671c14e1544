"""The published JSON Schema of what commands print: ``python -m penstock.agent.ctl.json_schema``.

Made from the message descriptors by the rules of ``render/json_values.py``. Later versions add fields, so no object is closed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from penstock.agent.ctl.diagnosis import NOTE, OK, WRONG
from penstock.agent.ctl.render.json_values import MOST, FieldKind, field_kind, field_name, may_be_absent
from penstock.agent.policy.manifest import API_VERSION, KIND
from penstock.proto.v1 import admin_pb2 as admin

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ID = f"https://{API_VERSION.replace('/', '/schemas/')}/agentctl.json"
_DEFINITIONS = "#/$defs/"
_PACKAGE = "penstock.v1."
_ANYTHING: dict[str, Any] = {"type": "object"}
_TEXT: dict[str, Any] = {"type": "string"}
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


def _name(descriptor: Any) -> str:
    return str(descriptor.full_name.removeprefix(_PACKAGE))


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _DEFINITIONS + name}


def _message(message: Any) -> dict[str, Any]:
    return _ref(_name(message.DESCRIPTOR))


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


_ONE_CHANGE = {
    "anyOf": [
        _message(admin.ApplyPolicyResponse),
        {
            "description": "With --wait: also the rollout; null if the agent disconnected first.",
            **_object(
                {
                    "change": _message(admin.ApplyPolicyResponse),
                    "rollout": {"anyOf": [_message(admin.Rollout), {"type": "null"}]},
                }
            ),
        },
    ]
}
_CHANGES = {
    "anyOf": [
        _ref("Change"),
        {"description": "Of several policies.", **_object({"items": _list_of(_ref("Change"))})},
    ]
}
_SIDE = {"description": "Null if absent.", "type": ["string", "null"]}
# Documents that are no messages.
_OTHERS: dict[str, dict[str, Any]] = {
    "Change": _ONE_CHANGE,
    "Manifest": {
        "description": "A policy as 'apply' takes it: transferpolicy.schema.json. 'apply' ignores the status.",
        **_object(
            {
                "apiVersion": {"const": API_VERSION},
                "kind": {"const": KIND},
                "metadata": _ANYTHING,
                "spec": _ANYTHING,
            },
            {"status": _ref("ManifestStatus")},
        ),
    },
    "Manifests": _object(
        {"apiVersion": {"const": "v1"}, "kind": {"const": "List"}, "items": _list_of(_ref("Manifest"))}
    ),
    "Finding": _object(
        {"level": {"enum": [OK, NOTE, WRONG]}, "subject": _TEXT, "what": _TEXT, "advice": _TEXT}
    ),
}

# By command, its words joined by "-".
COMMANDS: dict[str, dict[str, Any]] = {
    "apply": _CHANGES,
    "delete-policy": _ref("Change"),
    "describe-engine": {
        "allOf": [_message(admin.Engine), _object({"effectivePolicy": _message(admin.EffectivePolicy)})]
    },
    "diff-engine": _object(
        {
            "engines": _list_of(_TEXT),
            "differences": _list_of(_object({"field": _TEXT, "first": _SIDE, "second": _SIDE})),
        }
    ),
    "diff-policy": _object(
        {
            "policy": _TEXT,
            "from": _TEXT,
            "to": _TEXT,
            "differences": _list_of(_object({"field": _TEXT, "from": _SIDE, "to": _SIDE})),
        },
        {"engines": _list_of(_message(admin.EngineChange))},
    ),
    "doctor": _object({"healthy": {"type": "boolean"}, "findings": _list_of(_ref("Finding"))}),
    "drill-list": _message(admin.ListDrillsResponse),
    "drill-stop": _message(admin.ListDrillsResponse),
    "explain": _message(admin.Explanation),
    "export": _ref("Manifests"),
    "forget-engine": _message(admin.ForgetResponse),
    "forget-peer": _message(admin.ForgetResponse),
    "get-audit": _message(admin.ListAuditResponse),
    "get-engines": _message(admin.ListEnginesResponse),
    "get-events": _message(admin.ListEventsResponse),
    "get-peers": _message(admin.ListPeersResponse),
    "get-policy": {
        "description": "With --effective the last; in YAML several policies are several documents.",
        "anyOf": [_ref("Manifests"), _ref("Manifest"), _message(admin.EffectivePolicy)],
    },
    "get-requests": _message(admin.ListRequestsResponse),
    "import": _ref("Change"),
    "inject-fault": _message(admin.Drill),
    "pause": _message(admin.Rollout),
    "quarantine-add": _message(admin.Rollout),
    "quarantine-lift": _message(admin.Rollout),
    "quarantine-list": _message(admin.ListQuarantinesResponse),
    "resume": _message(admin.Rollout),
    "rollback": _ref("Change"),
    "set-policy": _CHANGES,
    "trace": _message(admin.Trace),
    "watch": {"description": "One event; in JSON one a line.", **_message(admin.LoggedEvent)},
}
_MESSAGES = (
    admin.ApplyPolicyResponse,
    admin.EffectivePolicy,
    admin.Explanation,
    admin.ForgetResponse,
    admin.ListAuditResponse,
    admin.ListDrillsResponse,
    admin.ListEnginesResponse,
    admin.ListEventsResponse,
    admin.ListPeersResponse,
    admin.ListQuarantinesResponse,
    admin.ListRequestsResponse,
    admin.Rollout,
    admin.Trace,
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
        **_OTHERS,
        "ManifestStatus": status,
        **dict(sorted(messages.items())),
    }
    return {
        "$schema": _DIALECT,
        "$id": _ID,
        "title": "What agentctl prints with -o json and -o yaml",
        "description": "The output of one command is $defs/COMMAND, words joined by hyphens: $defs/get-engines.",
        "anyOf": [_ref(name) for name in COMMANDS],
        "$defs": definitions,
    }


def _add(descriptor: Any, found: dict[str, Any]) -> None:
    """Add the definitions of a message and its fields to *found*."""
    if _name(descriptor) in found:
        return
    found[_name(descriptor)] = _properties(descriptor)
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
    return _list_of(_value(field)) if _is_list(field) else _value(field)


def _value(field: Any) -> dict[str, Any]:
    kind = field_kind(field)
    if kind in _SCALARS:
        return _ref(_SCALARS[kind][0])
    if kind is FieldKind.MESSAGE:
        return _ref(_name(field.message_type))
    if kind is FieldKind.WORD:
        words = [value.name for value in field.enum_type.values]
        prefix = words[0].removesuffix("UNSPECIFIED")
        return {"enum": [*(word.removeprefix(prefix).lower() for word in words[1:]), "unknown"]}
    if kind is FieldKind.MAP:
        return {"type": "object", "additionalProperties": _TEXT}
    if kind is FieldKind.DOCUMENT:
        return _ANYTHING
    return {"type": _TYPES.get(field.cpp_type, "integer")}


def _is_list(field: Any) -> bool:
    return isinstance(field.default_value, list) and field_kind(field) is not FieldKind.MAP


def text() -> str:
    """Return the schema as the file's text."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
