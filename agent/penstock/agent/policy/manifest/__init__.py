"""The policy manifest: schema, validation, merge. Pure."""

from __future__ import annotations

from penstock.agent.policy.manifest.ejection_rules import EjectionRules, ejection_rules, strictest
from penstock.agent.policy.manifest.engine_share import engine_identity
from penstock.agent.policy.manifest.form_fields import FormField, form_fields
from penstock.agent.policy.manifest.manifest import (
    API_VERSION,
    KIND,
    Manifest,
    check_manifest,
    parse_manifest,
    prefix_errors,
    read_json,
)
from penstock.agent.policy.manifest.meanings import MEANINGS
from penstock.agent.policy.manifest.merge import (
    FieldSource,
    Merged,
    ScheduleStep,
    build_schedule,
    effective_schedule,
    is_of_the_fleet,
    merge_policies,
    policies_selecting,
)
from penstock.agent.policy.manifest.sections import Leaf, Leaves, unflatten

__all__ = [
    "API_VERSION",
    "KIND",
    "MEANINGS",
    "EjectionRules",
    "FieldSource",
    "FormField",
    "Leaf",
    "Leaves",
    "Manifest",
    "Merged",
    "ScheduleStep",
    "build_schedule",
    "check_manifest",
    "effective_schedule",
    "ejection_rules",
    "engine_identity",
    "form_fields",
    "is_of_the_fleet",
    "merge_policies",
    "parse_manifest",
    "policies_selecting",
    "prefix_errors",
    "read_json",
    "strictest",
    "unflatten",
]
