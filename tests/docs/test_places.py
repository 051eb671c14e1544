"""Documents for developers name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_BASES = (
    _ROOT,
    _ROOT / "agent/penstock/agent",
    _ROOT / "instrumentation/penstock/instrumentation",
    _ROOT / "proto/penstock",
    _ROOT / "agent/penstock/agent/metrics",
    _ROOT / "agent/penstock/agent/policy/distribution",
    _ROOT / "instrumentation/penstock/instrumentation/policy",
    _ROOT / "instrumentation/penstock/instrumentation/telemetry",
)


@pytest.mark.parametrize(
    "document",
    ["CONTRIBUTING.md", "docs/architecture.md", "docs/testing.md", "docs/reference/field-facts.md"],
)
def test_named_files_exist(document: str) -> None:
    """A file that moves takes its mention along."""
    named = set(re.findall(r"`([\w/.-]+\.(?:py|proto|md|txt|yml|sh))`", (_ROOT / document).read_text()))
    assert named
    assert sorted(name for name in named if not any((base / name).exists() for base in _BASES)) == []
