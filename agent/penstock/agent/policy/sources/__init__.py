"""Where policies come from: sources that own the names they bring, and their merge."""

from __future__ import annotations

from penstock.agent.policy.sources.interface import (
    MAX_ITEM_BYTES,
    MAX_ITEMS,
    ManifestSource,
    SourceItem,
    SourceSet,
    SourceSink,
    SourceState,
)
from penstock.agent.policy.sources.source_spec import SourceSpec, parse_sources

__all__ = [
    "MAX_ITEMS",
    "MAX_ITEM_BYTES",
    "ManifestSource",
    "SourceItem",
    "SourceSet",
    "SourceSink",
    "SourceSpec",
    "SourceState",
    "parse_sources",
]
