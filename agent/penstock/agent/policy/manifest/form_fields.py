"""The fields of ``spec`` as a form has them, from the model's JSON Schema: kind, bounds, unit, meaning, default. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.parsing import DURATION_PATTERN
from penstock.agent.policy.manifest.manifest import Manifest
from penstock.agent.policy.manifest.meanings import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

YAML: Final = "yaml"
"""The kind of what has no input of its own: lists, maps, and the policy within a policy."""
COUNT, SHARE, FACTOR = "count", "share", "factor"

# A whole policy once more.
_WITHIN = "rollout.candidate"
# By the end of a field's name; of two that fit, the first.
_UNITS: Final = {
    "tokensPerSecond": "tokens per second",
    "Tokens": "tokens",
    "Items": "items",
    "Readers": "agents",
    "ailures": "failures",
    "ercent": "%",
    "perMinute": "per minute",
    "perHour": "per hour",
    "factor": "times",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """A field.

    Attributes:
        path: below ``spec``: ``deferral.maxTransferWait``.
        section: the path without its last name; empty for a field of ``spec`` itself.
        about: what the section is for.
        kind: ``duration``, ``count`` (a whole number), ``share`` (from 0 to 1), ``factor``, ``choice``, ``text`` or ``yaml``.
        choices: of a choice.
        least: of a number; None for others.
        most: as *least*.
        pattern: of a duration, a regular expression of all of it; empty for others.
        bounds: what may be written, in words.
        default: what holds where it is not set; empty where another policy or vLLM decides.

    """

    path: str
    section: str
    about: str
    kind: str
    choices: tuple[str, ...]
    least: float | None
    most: float | None
    pattern: str
    bounds: str
    unit: str
    meaning: str
    default: str


@cache
def form_fields() -> tuple[FormField, ...]:
    """Return all fields of ``spec`` in the order of the model."""
    schema = Manifest.model_json_schema(by_alias=True)
    return tuple(_fields(schema["$defs"]["Spec"], "", schema["$defs"]))


def _fields(node: Mapping[str, Any], section: str, models: Mapping[str, Any]) -> Iterator[FormField]:
    for name, written in node["properties"].items():
        path = f"{section}.{name}" if section else name
        part = written | next((each for each in written.get("anyOf", ()) if each.get("type") != "null"), {})
        model = models.get(part.get("$ref", "").rpartition("/")[2])
        if model is None or path == _WITHIN:
            yield _field(path, section, part)
        else:
            yield from _fields(model, path, models)


def _field(path: str, section: str, part: Mapping[str, Any]) -> FormField:
    kind, default = _kind(part), part.get("default")
    return FormField(
        path=path,
        section=section,
        about=MEANINGS[section] if section else "",
        kind=kind,
        choices=tuple(part["enum"] if "enum" in part else [part["const"]]) if kind == "choice" else (),
        least=part.get("minimum"),
        most=part.get("maximum"),
        pattern=f"(?:{DURATION_PATTERN})" if kind == "duration" else "",
        bounds=part["description"],
        unit=next((unit for end, unit in _UNITS.items() if path.endswith(end)), ""),
        meaning=MEANINGS[path],
        default="" if default is None or kind == YAML else str(default),
    )


def _kind(part: Mapping[str, Any]) -> str:
    """Return the kind of a schema; what is new to it is a key that is not there, and no guess."""
    if "enum" in part or "const" in part:
        return "choice"
    if part.get("type") == "string":
        return "duration" if DURATION_PATTERN in part.get("pattern", "") else "text"
    if part.get("type") == "number":
        return SHARE if part["maximum"] <= 1 else FACTOR
    return {"integer": COUNT, "array": YAML, "object": YAML, None: YAML}[part.get("type")]
