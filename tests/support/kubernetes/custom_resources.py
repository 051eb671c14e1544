"""What an API server does with an object of a CustomResourceDefinition: prune, validate by schema, evaluate CEL rules."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError
from jsonschema import Draft202012Validator, FormatChecker

if TYPE_CHECKING:
    from collections.abc import Iterator

_RULES = "x-kubernetes-validations"
# strfmt.IsDateTime of the API server.
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[tT]\d\d:\d\d:\d\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)")
_formats = FormatChecker(formats=())
# It raises the recursion limit, which Hypothesis lets no test do.
_ENVIRONMENT = celpy.Environment()


@_formats.checks("date-time", raises=ValueError)
def _is_date_time(value: Any) -> bool:
    if not isinstance(value, str):
        return True
    if _DATE_TIME.fullmatch(value) is None:
        return False
    datetime.fromisoformat(value[:19].upper())
    return True


@cache
def _program(rule: str) -> Any:
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(rule))


def refusals(schema: dict[str, Any], value: dict[str, Any]) -> list[str]:
    """Return why the API server refuses *value*; the rules are evaluated only if the schema holds, as there."""
    pruned = _prune(schema, value)
    validator = Draft202012Validator(schema, format_checker=_formats)
    return [error.message for error in validator.iter_errors(pruned)] or list(_broken(schema, pruned))


def rules(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Return each rule with the schema that it belongs to."""
    for rule in schema.get(_RULES, ()):
        yield schema, rule
    for part in _parts(schema):
        yield from rules(part)


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from schema.get("properties", {}).values()
    yield from (schema[key] for key in ("items", "additionalProperties") if key in schema)


def _prune(schema: dict[str, Any], value: Any) -> Any:
    if isinstance(value, list) and "items" in schema:
        return [_prune(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in schema:
        return {key: _prune(schema["additionalProperties"], item) for key, item in value.items()}
    known = schema.get("properties", {})
    return {key: _prune(known[key], item) for key, item in value.items() if key in known}


def _broken(schema: dict[str, Any], value: Any) -> Iterator[str]:
    for rule in schema.get(_RULES, ()):
        try:
            holds = bool(_program(rule["rule"]).evaluate({"self": json_to_cel(value)}))
        except CELEvalError:
            holds = False
        if not holds:
            yield rule["message"]
    if isinstance(value, list):
        for item in value:
            yield from _broken(schema["items"], item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _broken(schema.get("properties", {}).get(key) or schema["additionalProperties"], item)
