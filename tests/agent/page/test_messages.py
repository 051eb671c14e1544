"""What the server sends has two descriptions, and they say the same: its dataclasses and the scripts' types."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from penstock.agent.page.details.detail import Detail, Link, Section, WriteAnswer
from penstock.agent.page.live.entries import LogEntry
from penstock.agent.page.live.history import Minute
from penstock.agent.page.screen import Screen, ShownMap, signals_message
from penstock.proto.v1 import admin_pb2 as admin

ROOT = Path(__file__).parents[3]
SCRIPT = (ROOT / "agent" / "penstock" / "agent" / "page" / "static" / "messages.js").read_text()

Shape = dict[str, Any] | list[Any] | None
"""The fields of an object, the shapes of a union, or None for a text, a number or a truth value."""


def in_python(kind: Any) -> Shape:
    """Return the shape of a dataclass, of a sequence of one, or of a union of several; the fields as JSON has them."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {_camel(each.name): in_python(hints[each.name]) for each in fields(kind)}
    if get_origin(kind) in (Union, UnionType):
        return _one_or_all([in_python(each) for each in get_args(kind)])
    if get_origin(kind) is tuple:
        return in_python(get_args(kind)[0])
    return None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _one_or_all(shapes: list[Shape]) -> Shape:
    found = [each for each in shapes if each is not None]
    return found[0] if len(found) == 1 else found or None


def split(text: str, mark: str) -> list[str]:
    """Split *text* at each *mark* that is in no bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def in_words(text: str, named: dict[str, str]) -> Shape:
    """Return the shape of a type of JSDoc; *named* are those that it may name."""
    text = text.strip()
    if len(found := split(text, "|")) > 1:
        return _one_or_all([in_words(each, named) for each in found])
    text = text.removesuffix(" or null").removesuffix("[]")
    if text.startswith("[") and text.endswith("]"):
        return in_words(text[1:-1], named)
    if text.startswith("{"):
        pairs = [each.partition(":") for each in split(text[1:-1], ",")]
        return {name.strip().removesuffix("?"): in_words(kind, named) for name, _, kind in pairs}
    return in_words(named[text], named) if text in named else None


def types_of_the_scripts() -> dict[str, str]:
    """Return the types of the scripts by name, each as one line."""
    lines = "\n".join(line.removeprefix(" *").strip() for line in SCRIPT.splitlines())
    found = dict[str, str]()
    for kind, name, rest in re.findall(r"@typedef \{(.*)\} (\w+)\n((?:@property .*\n)*)", lines):
        each = re.findall(r"@property \{(.*)\} \[?(\w+)", rest)
        found[name] = f"{{{', '.join(f'{field}: {of}' for of, field in each)}}}" if each else kind
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Screen", Screen),
        ("LogEntry", LogEntry),
        ("Minute", Minute),
        ("Detail", Detail),
        ("Section", Section),
        ("Link", Link),
        ("WriteAnswer", WriteAnswer),
        ("FleetMap", ShownMap),
    ],
)
def test_the_scripts_types_are_what_is_sent(name: str, kind: Any) -> None:
    """Field by field."""
    named = types_of_the_scripts()
    sent, read = in_python(kind), in_words(named[name], named)
    assert sent
    assert read == sent


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("{a, b: text}", {"a": None, "b": None}),
        ("{a: [{b, c: Other or null}], d}", {"a": {"b": None, "c": {"z": None}}, "d": None}),
        ('{a?: "x" | "y"}', {"a": None}),
        ("{a: Other[] | null}", {"a": {"z": None}}),
        ("{a} | {b}", [{"a": None}, {"b": None}]),
    ],
)
def test_a_type_is_read(text: str, shape: Shape) -> None:
    """Objects, lists, unions and names."""
    assert in_words(text, {"Other": "{z: number}"}) == shape


def test_signals_have_the_columns_of_their_type() -> None:
    """They are made by name, without a dataclass."""
    typed = types_of_the_scripts()["Signals"]
    assert set(re.findall(r"(\w+):", typed)) == set(signals_message(admin.Signals()))
