"""The shape of what each command prints, as parts of the JSON Schema; ``json_schema.py`` adds the messages."""

from __future__ import annotations

from typing import Any, get_args

from penstock.agent.policy.manifest import API_VERSION, KIND
from penstock.agent.views.checks import NOTE, OK, WRONG
from penstock.agent.views.router_feed import State
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

_DEFINITIONS = "#/$defs/"
_PACKAGE = "penstock.v1."
ANYTHING: dict[str, Any] = {"type": "object"}
TEXT: dict[str, Any] = {"type": "string"}


def message_name(descriptor: Any) -> str:
    """Return the name of a message in the schema."""
    return str(descriptor.full_name.removeprefix(_PACKAGE))


def ref(name: str) -> dict[str, Any]:
    """Return a reference to a definition."""
    return {"$ref": _DEFINITIONS + name}


def message_ref(message: Any) -> dict[str, Any]:
    """Return a reference to a message."""
    return ref(message_name(message.DESCRIPTOR))


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def object_of(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


_ONE_CHANGE = {
    "anyOf": [
        message_ref(admin.ApplyPolicyResponse),
        {
            "description": "With --wait: also the rollout; null if the agent disconnected first.",
            **object_of(
                {
                    "change": message_ref(admin.ApplyPolicyResponse),
                    "rollout": {"anyOf": [message_ref(admin.Rollout), {"type": "null"}]},
                }
            ),
        },
    ]
}
_CHANGES = {
    "anyOf": [
        ref("Change"),
        {"description": "Of several policies.", **object_of({"items": list_of(ref("Change"))})},
    ]
}
_SIDE = {"description": "Null if absent.", "type": ["string", "null"]}
_YES_OR_NO = {"type": "boolean"}
# Documents that are no messages.
OTHERS: dict[str, dict[str, Any]] = {
    "Change": _ONE_CHANGE,
    "Manifest": {
        "description": "A policy as 'apply' takes it: transferpolicy.schema.json. 'apply' ignores the status.",
        **object_of(
            {
                "apiVersion": {"const": API_VERSION},
                "kind": {"const": KIND},
                "metadata": ANYTHING,
                "spec": ANYTHING,
            },
            {"status": ref("ManifestStatus")},
        ),
    },
    "Manifests": object_of(
        {"apiVersion": {"const": "v1"}, "kind": {"const": "List"}, "items": list_of(ref("Manifest"))}
    ),
    "Context": object_of(
        {"name": TEXT},
        {"address": TEXT, "tlsCa": TEXT, "tlsCert": TEXT, "tlsKey": TEXT, "tlsServerName": TEXT},
    ),
    "Standing": object_of(
        {
            "key": message_ref(EngineKey),
            "connected": {"type": "boolean"},
            "paused": {"type": "boolean"},
            "inSync": {"type": "boolean"},
        }
    ),
    "Need": {
        "description": "Something of an engine that would be lost with it. Without oldest if that is not known.",
        **object_of({"what": TEXT, "count": {"type": "integer"}, "whom": TEXT}, {"oldest": TEXT}),
    },
    "Recommendation": {
        "description": "Without manifest if nothing is recommended; without requests, from and to if not known.",
        **object_of(
            {
                "sentence": TEXT,
                "loads": {"type": "integer"},
                "complete": {"type": "boolean"},
                "recorded": message_ref(admin.WhatIfCounts),
                "today": message_ref(admin.WhatIfCounts),
                "candidates": list_of(
                    object_of({"fields": ANYTHING, "replayed": message_ref(admin.WhatIfCounts)})
                ),
                "notKnown": list_of(TEXT),
            },
            {
                "manifest": ref("Manifest"),
                "requests": {"type": "integer"},
                "from": ref("Moment"),
                "to": ref("Moment"),
            },
        ),
    },
    "MapNode": {
        "description": "An engine, or the address of a peer that is no known engine. role: encoder, prefill, both, decode, other.",
        **object_of(
            {
                "name": TEXT,
                "role": TEXT,
                "pool": TEXT,
                "isEngine": _YES_OR_NO,
                "connected": _YES_OR_NO,
                "inTrouble": _YES_OR_NO,
            },
            {"awaySince": ref("Moment")},
        ),
    },
    "MapGroup": object_of(
        {
            "name": TEXT,
            "role": TEXT,
            "pool": TEXT,
            "members": list_of(TEXT),
            "engines": ref("Count"),
            "inTrouble": ref("Count"),
            "away": ref("Count"),
        }
    ),
    "MapEdge": {
        "description": "State goes from a node or group to another; of a sum, links is more than 1. What is absent is not known.",
        **object_of(
            {
                "from": TEXT,
                "to": TEXT,
                "channel": TEXT,
                "condition": TEXT,
                "conditionReason": TEXT,
                "cause": TEXT,
                "links": ref("Count"),
                "linksInTrouble": ref("Count"),
            },
            {
                "at": TEXT,
                "conditionSince": ref("Moment"),
                "bytesPerSecond": ref("Float"),
                "transfers": ref("Count"),
                "failed": ref("Count"),
                "transferBytesPerSecond": ref("Float"),
                "usualBytesPerSecond": ref("Float"),
            },
        ),
    },
    "Finding": object_of(
        {"level": {"enum": [OK, NOTE, WRONG]}, "subject": TEXT, "what": TEXT, "advice": TEXT}
    ),
}

# By command, its words joined by "-".
COMMANDS: dict[str, dict[str, Any]] = {
    "apply": _CHANGES,
    "bill": message_ref(admin.Bill),
    "config-get-contexts": object_of({"currentContext": TEXT, "items": list_of(ref("Context"))}),
    "debug-stacks": message_ref(admin.EngineStacks),
    "delete-policy": ref("Change"),
    "describe-engine": {
        "allOf": [
            message_ref(admin.Engine),
            object_of({"effectivePolicy": message_ref(admin.EffectivePolicy)}),
        ]
    },
    "describe-peer": object_of(
        {
            "peer": TEXT,
            "engines": list_of(message_ref(admin.PeerSummary)),
            "quarantines": list_of(message_ref(admin.Quarantine)),
            "failures": list_of(message_ref(admin.LoggedEvent)),
        }
    ),
    "describe-policy": object_of(
        {
            "policy": ref("Manifest"),
            "engines": list_of(ref("Standing")),
            "audit": list_of(message_ref(admin.AuditEntry)),
        }
    ),
    "describe-request": message_ref(admin.Explanation),
    "diagnose": message_ref(admin.Diagnosis),
    "diff-engine": object_of(
        {
            "engines": list_of(TEXT),
            "differences": list_of(object_of({"field": TEXT, "first": _SIDE, "second": _SIDE})),
        }
    ),
    "diff-policy": object_of(
        {
            "policy": TEXT,
            "from": TEXT,
            "to": TEXT,
            "differences": list_of(object_of({"field": TEXT, "from": _SIDE, "to": _SIDE})),
        },
        {"engines": list_of(message_ref(admin.EngineChange))},
    ),
    "doctor": object_of({"healthy": {"type": "boolean"}, "findings": list_of(ref("Finding"))}),
    "drain": object_of(
        {"engine": TEXT, "drained": {"type": "boolean"}, "unknown": TEXT, "needs": list_of(ref("Need"))}
    ),
    "drill-list": message_ref(admin.ListDrillsResponse),
    "drill-stop": message_ref(admin.ListDrillsResponse),
    "edit-policy": ref("Change"),
    "eject": message_ref(admin.SetEjectionResponse),
    "explain": message_ref(admin.Explanation),
    "export": ref("Manifests"),
    "forget-engine": message_ref(admin.ForgetResponse),
    "forget-peer": message_ref(admin.ForgetResponse),
    "get-audit": message_ref(admin.ListAuditResponse),
    "get-ejections": message_ref(admin.ListEjectionsResponse),
    "get-engines": {
        "description": "With the name of one engine the last.",
        "anyOf": [message_ref(admin.ListEnginesResponse), message_ref(admin.Engine)],
    },
    "get-events": message_ref(admin.ListEventsResponse),
    "get-pairs": message_ref(admin.ListPairsResponse),
    "get-holders": message_ref(admin.ListHoldersResponse),
    "get-map": {
        "description": "Bytes, transfers and failures are of the last windowSeconds.",
        **object_of(
            {
                "windowSeconds": ref("Count"),
                "nodes": list_of(ref("MapNode")),
                "groups": list_of(ref("MapGroup")),
                "edges": list_of(ref("MapEdge")),
                "leftOut": ref("Count"),
            }
        ),
    },
    "get-peers": message_ref(admin.ListPeersResponse),
    "get-policy": {
        "description": "With --effective the last; in YAML several policies are several documents.",
        "anyOf": [ref("Manifests"), ref("Manifest"), message_ref(admin.EffectivePolicy)],
    },
    "get-requests": message_ref(admin.ListRequestsResponse),
    "signals": message_ref(admin.Signals),
    "get-suspects": message_ref(admin.ListSuspectsResponse),
    "import": ref("Change"),
    "inject-fault": message_ref(admin.Drill),
    "page": {"description": "With --bundle the address only.", **message_ref(admin.IssuePageTokenResponse)},
    "pause": message_ref(admin.Rollout),
    "quarantine-add": message_ref(admin.Rollout),
    "quarantine-lift": message_ref(admin.Rollout),
    "quarantine-list": message_ref(admin.ListQuarantinesResponse),
    "recommend": {
        "description": "In YAML the manifest, after its evidence as comments; nothing where nothing is recommended.",
        "anyOf": [ref("Recommendation"), ref("Manifest")],
    },
    "resume": message_ref(admin.Rollout),
    "rollback": ref("Change"),
    "rollout-abort": message_ref(admin.PolicyRollout),
    "rollout-history": message_ref(admin.ListAuditResponse),
    "rollout-pause": message_ref(admin.PolicyRollout),
    "rollout-promote": message_ref(admin.PolicyRollout),
    "rollout-resume": message_ref(admin.PolicyRollout),
    "rollout-start": message_ref(admin.PolicyRollout),
    "rollout-status": {
        "description": "With one name the last.",
        "anyOf": [message_ref(admin.ListPolicyRolloutsResponse), message_ref(admin.PolicyRollout)],
    },
    "routers": object_of(
        {
            "endpoints": list_of(
                object_of(
                    {
                        "source": object_of({"engine": _SIDE, "address": _SIDE}),
                        "state": {"enum": [*get_args(State)]},
                        "agree": {"type": "integer"},
                        "readLately": {"type": "integer"},
                        "since": _SIDE,
                        "why": TEXT,
                        "url": _SIDE,
                    }
                )
            )
        }
    ),
    "set-policy": _CHANGES,
    "trace": message_ref(admin.Trace),
    "version": object_of({"clientVersion": TEXT}, {"agentVersion": TEXT}),
    "what-if": message_ref(admin.WhatIfResponse),
    "watch": {"description": "One event; in JSON one a line.", **message_ref(admin.LoggedEvent)},
}
