"""The published JSON Schema of the feed for routers: ``python -m penstock.agent.views.router_feed.json_schema``.

Later versions add fields, so no object is closed.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.views.router_feed.model import AgentFeed, RelayFeed

if TYPE_CHECKING:
    from pydantic import BaseModel

_ID: Final = "https://penstock.dev/schemas/v1/router-feed.json"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of both kinds of feed."""
    made = _schemas(("AgentFeed", AgentFeed), ("RelayFeed", RelayFeed))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": "GET /v1/peers",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in ("AgentFeed", "RelayFeed")],
        "$defs": made,
    }


def _schemas(*models: tuple[str, type[BaseModel]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, model in models:
        made = model.model_json_schema(by_alias=True, mode="serialization")
        found.update(made.pop("$defs", {}))
        found[name] = made
    return {name: _plain(found[name]) for name in sorted(found)}


def _plain(node: Any) -> Any:
    """Remove the titles of fields, which repeat their names."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _plain(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))
    }


def text() -> str:
    """Return the schema as the file's text."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
