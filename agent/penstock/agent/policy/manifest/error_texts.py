"""The sentence of the first error in a manifest, with its path.

Each field's description completes its error text: ``<path> is <value>; use <description>``.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from penstock.agent.errors import ManifestError
from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

# Type of errors with a complete text of their own.
RULE = "rule"
_MAX_SHOWN = 80
_PLAIN_NAME = re.compile(r"[\w./-]{1,80}")


def manifest_error(error: ValidationError, model: type[BaseModel]) -> ManifestError:
    """Return the first error in *model* with its path and location."""
    first = error.errors(include_url=False, include_context=True)[0]
    location = [part for part in first["loc"] if part != "[key]"]
    path = _path(location)
    return ManifestError(_sentence(first, location, path, model), path, tuple(location))


def _sentence(first: ErrorDetails, location: list[int | str], path: str, model: type[BaseModel]) -> str:
    if first["type"] == RULE:
        text = first["msg"]
        return text if text.startswith("spec") else f"{path}.{text}"
    parent, field = _resolve(model, location)
    if first["type"] == "extra_forbidden":
        return _unknown(path, str(location[-1]), parent)
    way_out = field.description if field is not None and field.description else "another value"
    if first["type"] == "missing":
        return f"{path} is missing; use {way_out}"
    return f"{path} is {_shown(first['input'])}; use {way_out}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _path(location: list[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{_name(part)}" if path else _name(part)
    return path


def _name(part: str) -> str:
    """Return a name, quoted and cut if it is not a plain one."""
    return part if _PLAIN_NAME.fullmatch(part) else _shown(part)


def _unknown(path: str, name: str, parent: type[BaseModel]) -> str:
    known = [field.alias or key for key, field in parent.model_fields.items()]
    near = get_close_matches(name, known, n=1)
    place = path.removesuffix(_name(name)).removesuffix(".") or "a manifest"
    hint = f"did you mean {near[0]}?" if near else f"{place} has {', '.join(known)}"
    return f"{path} is not a field; {hint}"


def _resolve(model: type[BaseModel], location: list[int | str]) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the innermost model of *location* and its field, if there is one."""
    field: FieldInfo | None = None
    for part in location:
        inner = _model_of(field.annotation) if field is not None else model
        if inner is not None:
            model = inner
        elif field is not None:
            # Inside a list or a map of scalars: its description applies.
            continue
        if isinstance(part, int):
            continue
        field = next((item for key, item in model.model_fields.items() if part in (item.alias, key)), None)
    return model, field


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_of(arg)) is not None), None)
