"""Prints docs/reference/client-error.schema.json, from the words and bounds of the object ``penstock`` of a client's error."""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.instrumentation.vllm.recovery.error_facts import (
    ERROR_TYPE_WORDS,
    RETRY_MAX_S,
    RETRY_MIN_S,
    TEXT_MAX,
)
from penstock.instrumentation.vllm.requests import MODE_WORDS
from penstock.rules import DecidedBy

_ID = "https://penstock.dev/schemas/v1alpha1/client-error.json"


def schema() -> dict[str, Any]:
    """Return the schema of the body of a 503, and of the error event of a stream."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": "ClientError",
        "description": "The body of a 503, and the error event of a stream, of a request whose KV or encoder outputs "
        "could not be loaded. null: not known. A later version may add fields.",
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code", "penstock"],
                "properties": {
                    "message": {"type": "string", "description": "For a person."},
                    "type": {"type": "string", "description": "vLLM's."},
                    "code": {"const": 503},
                    "penstock": _object(),
                },
            }
        },
    }


def _object() -> dict[str, Any]:
    fields = {
        "retryable": {
            "type": "boolean",
            "description": "The same request may succeed when it is sent again.",
        },
        "channel": {"enum": ["kv", "ec"], "description": "What could not be loaded: KV or encoder outputs."},
        "peer": {
            "type": "object",
            "description": "Where it was to come from.",
            "required": ["address", "engine_id"],
            "properties": {
                "address": _text("host:port of its side channel."),
                "engine_id": _text("vLLM's connector engine id."),
            },
        },
        "mode": _word(MODE_WORDS.values(), "What was being attempted; null if nothing was."),
        "error_type": _word(ERROR_TYPE_WORDS.values(), "Why it failed; null if nothing failed."),
        "decided_by": {
            "enum": [each.name.lower() for each in DecidedBy],
            "description": "Who chose to fail the request. vllm: the connector did.",
        },
        "policy": _text("The policy that set the deciding field: name and generation."),
        "blocks_held": {
            "type": ["boolean", "null"],
            "description": "Whether the peer still holds what was to be loaded.",
        },
        "held_until": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Until when it does.",
        },
        "retry_after_s": {
            "type": "integer",
            "minimum": RETRY_MIN_S,
            "maximum": RETRY_MAX_S,
            "description": "Seconds after which a retry may have another result; also the header Retry-After.",
        },
    }
    return {"type": "object", "required": list(fields), "properties": fields}


def _text(meaning: str) -> dict[str, Any]:
    return {"type": ["string", "null"], "minLength": 1, "maxLength": TEXT_MAX, "description": meaning}


def _word(words: Any, meaning: str) -> dict[str, Any]:
    return {"enum": [*words, None], "description": meaning}


def text() -> str:
    """Return the schema as the file's text."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
