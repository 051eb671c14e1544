"""Text that people write: YAML with line numbers, durations, label selectors. Pure."""

from __future__ import annotations

from penstock.agent.parsing import label_selector
from penstock.agent.parsing.drill_modes import DRILL_MODES, SLOW
from penstock.agent.parsing.label_selector import (
    MAX_GLOB,
    MAX_GLOBS,
    Requirement,
    Selection,
    Target,
    format_labels,
    no_engine,
    parse_key,
    parse_labels,
    select,
)
from penstock.agent.parsing.quantities import (
    DURATION_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from penstock.agent.parsing.secrets import MASK, mask_message, mask_urls

__all__ = [
    "DRILL_MODES",
    "DURATION_PATTERN",
    "MASK",
    "MAX_GLOB",
    "MAX_GLOBS",
    "SLOW",
    "Requirement",
    "Selection",
    "Target",
    "format_duration",
    "format_labels",
    "format_size",
    "label_selector",
    "mask_message",
    "mask_urls",
    "no_engine",
    "parse_duration",
    "parse_key",
    "parse_labels",
    "parse_size",
    "select",
]
