"""What a policy is: its schema, its validation, how several are merged. Pure."""

from __future__ import annotations

from penstock.agent.policy.manifest.flat_fields import Leaf, Leaves, unflatten
from penstock.agent.policy.manifest.manifest import (
    API_VERSION,
    BREAK_GLASS_PRIORITY,
    KIND,
    Manifest,
    about,
    check_manifest,
    parse_manifest,
    read_json,
)
from penstock.agent.policy.manifest.merge import (
    FieldSource,
    Merged,
    ScheduleStep,
    effective,
    merge,
    schedule,
    selecting,
)

__all__ = [
    "API_VERSION",
    "BREAK_GLASS_PRIORITY",
    "KIND",
    "FieldSource",
    "Leaf",
    "Leaves",
    "Manifest",
    "Merged",
    "ScheduleStep",
    "about",
    "check_manifest",
    "effective",
    "merge",
    "parse_manifest",
    "read_json",
    "schedule",
    "selecting",
    "unflatten",
]
