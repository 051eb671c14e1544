"""Values as JSON for the page: camelCase names, text without styles, and no text longer than a line. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.agent.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_MESSAGE_BYTES = 64 * 1024
"""Maximum bytes of a message's JSON."""
MAX_TEXT = 400
"""Maximum characters of a text that an engine or a person chose."""

MAX_NAME = 1_024
"""Maximum characters of a name in a question or a write."""

# The marks of styles, and any other half of a character that UTF-8 cannot say.
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_PARTS = re.compile(r"[^\n\t]+")
# Characters that change the direction of text. They have no place in JSON's syntax, so all of them are in its texts.
_DIRECTIONS = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ENDING = "…"
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def plain(text: str, longest: int = MAX_TEXT) -> str:
    """Return *text* for people: without marks of styles, escaped as agentctl does, cut to *longest* characters.

    Line breaks and tabs stay.
    """
    if text.isprintable():
        clean = text
    else:
        clean = _PARTS.sub(lambda part: printable(part[0]), _SURROGATES.sub("", text))
    return clean if len(clean) <= longest else clean[: longest - 1] + _ENDING


def hidden_name(name: str) -> str:
    """Return *name* where :func:`plain` shows another and a question may ask for it; empty otherwise.

    It is for addresses only, never to be shown.
    """
    return name if len(name) <= MAX_NAME and plain(name) != name else ""


def milliseconds(unix_nano: int) -> float:
    """Return a time for the page: milliseconds since 1970."""
    return unix_nano // 1_000_000


def encode(value: Any) -> bytes:
    """Return a dataclass, or values of JSON, as JSON; what changes the direction of text is escaped, as in a name."""
    said = json.dumps(as_values(value), ensure_ascii=False, separators=(",", ":"))
    if not said.isascii():
        said = _DIRECTIONS.sub(lambda found: f"\\u{ord(found[0]):04x}", said)
    return said.encode("utf-8", "replace")


def encode_fields(value: Any, between: Callable[[], None] = lambda: None) -> dict[str, bytes]:
    """Return each field of a dataclass as JSON, by its name; *between* is called after each."""
    kind: type = type(value)
    found: dict[str, bytes] = {}
    for name, _ in _names(kind):
        found[name] = encode(getattr(value, name))
        between()
    return found


def join_fields(kind: type, encoded: Mapping[str, bytes]) -> bytes:
    """Return what :func:`encode` returns of a dataclass of *kind* with the fields of :func:`encode_fields`."""
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), encoded[each]) for each, name in _names(kind))


def as_values(value: Any) -> Any:
    """Return a dataclass as values of JSON; a field whose value is None is null."""
    # Nearly all of the thousands of values of a screen.
    if type(value) in _AS_THEY_ARE:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {name: as_values(getattr(value, attribute)) for attribute, name in _names(type(value))}
    if isinstance(value, tuple | list):
        return [as_values(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_values(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _names(kind: type) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, _camel(each.name)) for each in fields(kind))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
