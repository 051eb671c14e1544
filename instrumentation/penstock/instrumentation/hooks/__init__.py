"""What a hook is: its requirements of the host, how it attaches and detaches. Knows no vLLM."""

from __future__ import annotations

from penstock.instrumentation.hooks.patch import Patch, Swaps, instrumented
from penstock.instrumentation.hooks.registry import Fit, Hook, MissingPart, fit_of, registry
from penstock.instrumentation.hooks.report import (
    PLUGIN_GROUP,
    HookReport,
    HookStatus,
    Report,
    check_environment,
    format_json,
    format_text,
)
from penstock.instrumentation.hooks.requirements import (
    AnyOf,
    Extension,
    InstanceState,
    Need,
    Part,
    Requirement,
)

__all__ = [
    "PLUGIN_GROUP",
    "AnyOf",
    "Extension",
    "Fit",
    "Hook",
    "HookReport",
    "HookStatus",
    "InstanceState",
    "MissingPart",
    "Need",
    "Part",
    "Patch",
    "Report",
    "Requirement",
    "Swaps",
    "check_environment",
    "fit_of",
    "format_json",
    "format_text",
    "instrumented",
    "registry",
]
