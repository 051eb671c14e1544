"""The published JSON Schema of a policy, made from the model: ``python -m penstock.agent.policy.manifest.json_schema``.

Editors and pipelines check manifests with it. Whatever the agent takes is valid by it; the agent
refuses a little more: what depends on the present, bounds of durations, and labels that match nothing.
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
    """Leave out titles, which only repeat the names, and defaults of what is not set."""
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
    """Return it as the file has it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
