"""What a hook is: its requirements of the host, how it attaches and detaches. Knows no vLLM."""

from __future__ import annotations

from penstock.instrumentation.hooks.patch import Patch
from penstock.instrumentation.hooks.registry import Hook, registry, unmet_requirements
from penstock.instrumentation.hooks.report import (
    PLUGIN_GROUP,
    HookReport,
    HookStatus,
    Report,
    check_environment,
    format_json,
    format_text,
)
from penstock.instrumentation.hooks.requirements import Extension, InstanceState, Need, Requirement
from penstock.instrumentation.hooks.subclass import Swaps, instrumented

__all__ = [
    "PLUGIN_GROUP",
    "Extension",
    "Hook",
    "HookReport",
    "HookStatus",
    "InstanceState",
    "Need",
    "Patch",
    "Report",
    "Requirement",
    "Swaps",
    "check_environment",
    "format_json",
    "format_text",
    "instrumented",
    "registry",
    "unmet_requirements",
]
