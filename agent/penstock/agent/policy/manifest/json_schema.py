"""The published JSON Schema of a policy: ``python -m penstock.agent.policy.manifest.json_schema``.

For editors and pipelines. Every manifest that the agent accepts is valid. The agent also refuses expired
manifests, durations out of bounds, and labels that match nothing.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.agent.policy.manifest.manifest import API_VERSION, KIND, Manifest

_ID = f"https://{API_VERSION.replace('/', '/schemas/')}/transferpolicy.json"


def schema() -> dict[str, Any]:
    """Return the schema."""
    made = _plain(Manifest.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": _ID, "title": KIND, **made}


def _plain(node: Any) -> Any:
    """Remove titles, which repeat the names, and null defaults."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _plain(value)
        for key, value in node.items()
        if key != "title" and not (key == "default" and value is None)
    }


def text() -> str:
    """Return the schema as the file's text."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
