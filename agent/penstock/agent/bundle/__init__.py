"""The file of a bundle: its format, writing it, and opening it with care."""

from __future__ import annotations

from penstock.agent.bundle.build import BundleBuilder
from penstock.agent.bundle.contents import (
    CONFIGURATION,
    FORMAT,
    JOURNAL,
    MANIFEST,
    METRICS,
    POLICIES,
    STATE,
    BundledFile,
    BundleManifest,
    check_values,
)
from penstock.agent.bundle.unpack import ScratchDirectory, unpack_bundle

__all__ = [
    "CONFIGURATION",
    "FORMAT",
    "JOURNAL",
    "MANIFEST",
    "METRICS",
    "POLICIES",
    "STATE",
    "BundleBuilder",
    "BundleManifest",
    "BundledFile",
    "ScratchDirectory",
    "check_values",
    "unpack_bundle",
]
