"""The fields of a form are those of the schema, each with what a person needs to fill it in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.agent.parsing import parse_duration
from penstock.agent.policy.manifest import MEANINGS, form_fields
from penstock.agent.policy.manifest.json_schema import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEMA = schema()
_FIELDS = {each.path: each for each in form_fields()}


def _scalars(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the scalar properties below an object of the published schema, without those of lists and maps."""
    for name, part in node.get("properties", {}).items():
        for each in part.get("anyOf", [part]):
            found = _SCHEMA["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
            below = f"{path}.{name}" if path else name
            if "properties" in found:
                yield from _scalars(found, below)
            elif found.get("type") not in {"null", "array", "object"}:
                yield below, found


def test_every_scalar_of_the_schema_is_a_field() -> None:
    """With its bounds, words and pattern; the policy within a policy is written in the YAML."""
    scalars = dict(_scalars(_SCHEMA["$defs"]["Spec"], ""))
    own = {path: part for path, part in scalars.items() if not path.startswith("rollout.candidate.")}
    assert {path for path, each in _FIELDS.items() if each.kind != "yaml"} == set(own)
    for path, part in own.items():
        field = _FIELDS[path]
        assert (field.least, field.most) == (part.get("minimum"), part.get("maximum")), path
        words = part.get("enum", [part["const"]] if "const" in part else [])
        assert list(field.choices) == words, path
        assert bool(field.pattern) == ("pattern" in part), path


def test_what_is_no_scalar_is_named_too() -> None:
    """A form says what it leaves to the YAML."""
    assert [path for path, each in _FIELDS.items() if each.kind == "yaml"] == [
        "selector.matchLabels",
        "selector.matchExpressions",
        "selector.models",
        "rollout.candidate",
    ]


def test_each_field_says_what_it_is() -> None:
    """Its meaning, its bounds, the meaning of its section, and of each count what is counted."""
    for path, field in _FIELDS.items():
        assert field.meaning == MEANINGS[path]
        assert field.bounds
        assert bool(field.about) == bool(field.section)
        assert bool(field.unit) == (field.kind in {"count", "factor"} and path != "priority"), path
    assert {path: each.default for path, each in _FIELDS.items() if each.default} == {
        "priority": "100",
        "mode": "enforce",
    }


def test_a_pattern_is_a_duration() -> None:
    """A browser compares all of the text, as the agent does."""
    (pattern,) = {each.pattern for each in form_fields() if each.pattern}
    for written in ("30s", "1h30m", "250ms", "1.5s"):
        assert re.fullmatch(pattern, written)
        parse_duration(written)
    assert not re.fullmatch(pattern, "30")
