"""Texts of JSON in answers, and the shape of the manifests among them, as far as it is read. Pure.

An agent of another version may have fields that this one does not know: they are let through, as no one reads them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Fits = Callable[[Any, str], str]

MAX_DEPTH: Final = 32
"""Levels of a document, as many as of a file of policies."""


@dataclass(frozen=True, slots=True)
class _Object:
    """An object of JSON.

    Attributes:
        fields: what those that are read must be.
        needed: those that must be there.
        others: what all other fields must be; None for anything.

    """

    fields: Mapping[str, Fits]
    needed: frozenset[str] = frozenset()
    others: Fits | None = None

    def __call__(self, value: Any, place: str) -> str:
        """Return the place of the first field that is something else; empty if all fit."""
        if not isinstance(value, dict) or not self.needed <= value.keys():
            return place
        for name, each in value.items():
            fits = self.fields.get(name, self.others)
            if fits is not None and (wrong := fits(each, f"{place}.{name}")):
                return wrong
        return ""


def _a(kind: type, value: Any, place: str) -> str:
    return "" if type(value) is kind else place


def _a_list_of(fits: Fits, value: Any, place: str) -> str:
    if not isinstance(value, list):
        return place
    return next((wrong for each in value if (wrong := fits(each, place))), "")


def _a_time(value: Any, place: str) -> str:
    try:
        datetime.fromisoformat(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return place
    return ""


_TEXT, _NUMBER = partial(_a, str), partial(_a, int)
_TEXTS: Final = partial(_a_list_of, _TEXT)
_MAP: Final = _Object({}, others=_TEXT)
_EXPRESSION: Final = _Object(
    {"key": _TEXT, "operator": _TEXT, "values": _TEXTS}, frozenset({"key", "operator"})
)
_SELECTOR: Final = _Object(
    {"matchLabels": _MAP, "matchExpressions": partial(_a_list_of, _EXPRESSION), "models": _TEXTS}
)
_SPEC: Final = _Object(
    {
        "selector": _SELECTOR,
        "rollout": _Object({"percent": _NUMBER}, frozenset({"percent"})),
        "priority": _NUMBER,
        "expiresAt": _a_time,
        "mode": _TEXT,
    }
)
_METADATA: Final = _Object({"name": _TEXT, "annotations": _MAP})
_MANIFEST: Final = _Object({"metadata": _METADATA, "spec": _SPEC}, frozenset({"metadata", "spec"}))


def wrong_document(text: str, *, manifest: bool) -> str:
    """Return why *text* is no object of JSON, or no *manifest*; empty if it is one.

    What has a part of a manifest is one in any case: the audit log has orders besides.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(found, dict):
        return "is no object"
    if wrong := _wrong_value(found):
        return wrong
    place = _MANIFEST(found, "manifest") if manifest or not _MANIFEST.needed.isdisjoint(found) else ""
    return place and f"is no manifest: {place} is not what one has there"


def _wrong_value(found: Any) -> str:
    """Return what the first value has that UTF-8, JSON or a person's patience does not."""
    level = [found]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, str):
                # Half of a character is what marks a style in the output.
                if not each.isascii() and any("\ud800" <= character <= "\udfff" for character in each):
                    return "has half of a character"
            elif isinstance(each, float) and not math.isfinite(each):
                return "has a number that is none"
        if not below:
            return ""
        level = below
    return f"is more than {MAX_DEPTH} levels deep"
