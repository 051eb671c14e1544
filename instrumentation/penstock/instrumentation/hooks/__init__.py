"""What a hook is: what it needs of the host, how it attaches and detaches. Knows no vLLM."""

from __future__ import annotations

from penstock.instrumentation.hooks.patch import Patch
from penstock.instrumentation.hooks.registry import (
    Extension,
    Hook,
    InstanceState,
    Need,
    Requirement,
    misfit,
    registry,
)
from penstock.instrumentation.hooks.report import (
    GROUP,
    HookReport,
    HookStatus,
    Report,
    as_json,
    as_text,
    surroundings,
)
from penstock.instrumentation.hooks.subclass import Swaps, instrumented

__all__ = [
    "GROUP",
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
    "as_json",
    "as_text",
    "instrumented",
    "misfit",
    "registry",
    "surroundings",
]
