"""Builders of manifests and targets for tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Target
from penstock.agent.policy.manifest.manifest import API_VERSION, KIND, Manifest, parse_manifest

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def document(name: str = "decode-default", *, reason: str = "", **spec: Any) -> dict[str, Any]:
    """Return a manifest as JSON values; what it sets is recompute, unless *spec* says otherwise."""
    metadata: dict[str, Any] = {"name": name}
    if reason:
        metadata["annotations"] = {"penstock.dev/reason": reason}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {"kvLoadFailure": {"action": "recompute"}, **spec},
    }


def manifest(name: str = "decode-default", **spec: Any) -> Manifest:
    """Return a checked manifest, see :func:`document`."""
    return parse_manifest(json.dumps(document(name, **spec)))


def action(value: str) -> dict[str, str]:
    """Return what sets the action of a failed KV load."""
    return {"action": value}


def target(engine: str = "0", *, server: str = "", model: str = "tiny", **labels: str) -> Target:
    """Return an engine as selectors see it."""
    return Target(EngineKey(server, engine), model, labels)
