"""The configuration without secrets, for a bundle. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.parsing import MASK, mask_urls
from penstock.agent.policy.sources import SourceSpec
from penstock.agent.server import TcpAddress, UnixAddress

if TYPE_CHECKING:
    from penstock.agent.daemon.config import Config

# Fields whose text is a secret; those of a file's path have another type, or end so.
_SECRET = re.compile(r"header|token|password|passwd|secret|credential|authorization", re.IGNORECASE)
_PATHS = ("_file", "_key", "certificate")


def shown_config(config: Config) -> bytes:
    """Return the configuration as JSON: secrets are masked, files are named and not read."""
    return (json.dumps(_shown(config), indent=2, ensure_ascii=False) + "\n").encode()


def _shown(value: Any) -> Any:
    """Return a value for JSON. What is of no type that is known here is left out: it may hold anything."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path | TcpAddress | UnixAddress | SourceSpec):
        return mask_urls(value.name if isinstance(value, SourceSpec) else str(value))
    return _shown_parts(value)


def _shown_parts(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _field(each.name, getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _field(name, getattr(value, name)) for name in value._fields}
    if isinstance(value, tuple | list):
        return [_shown(item) for item in value]
    return MASK


def _field(name: str, value: Any) -> Any:
    if isinstance(value, str) and value and _SECRET.search(name) and not name.endswith(_PATHS):
        return MASK
    return _shown(value)
