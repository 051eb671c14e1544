"""The file of a bundle: its format, writing it, and opening it with care."""

from __future__ import annotations

from penstock.agent.bundle.build import BundleBuilder
from penstock.agent.bundle.contents import (
    CONFIGURATION,
    DUMPS,
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
from penstock.agent.bundle.watchdog_dumps import WatchdogDumps, read_watchdog_dumps

__all__ = [
    "CONFIGURATION",
    "DUMPS",
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
    "WatchdogDumps",
    "check_values",
    "read_watchdog_dumps",
    "unpack_bundle",
]
