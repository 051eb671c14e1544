"""JSONPath templates, as kubectl reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.ctl.jsonpath import fill_template, parse_template

_DOCUMENT: dict[str, Any] = {
    "items": [
        {"name": "a", "count": 1, "ok": True, "labels": {"x.y/z": "one"}, "peers": ["p", "q"]},
        {"name": "b", "count": 2, "ok": False, "labels": {}, "peers": []},
        {"name": "c", "count": 2.5, "labels": {"role": "decode"}, "peers": ["r"]},
    ],
    "kind": "List",
    "none": None,
}


def _filled(template: str, document: Any = _DOCUMENT) -> str:
    return fill_template(parse_template(template), document)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].name}", "a b c"),
        (".items[*].name", "a b c"),
        ("{$.items[0].name}", "a"),
        ("{@.kind}", "List"),
        ("{.items[-1].name}", "c"),
        ("{.items[9].name}", ""),
        ("{.items[0:2].name}", "a b"),
        ("{.items[:-1].name}", "a b"),
        ("{.items[::2].name}", "a c"),
        ("{.items[0,2].name}", "a c"),
        ("{.items[0]['name','count']}", "a 1"),
        (r"{.items[0].labels.x\.y/z}", "one"),
        ("{.items[0].labels['x.y/z']}", "one"),
        ("{.items[*].labels.*}", "one decode"),
        ("{..role}", "decode"),
        ("{.items..peers[0]}", "p r"),
        ("{.items[0].ok} {.items[0].count} {.items[2].count}", "true 1 2.5"),
        ("{.items[0].peers}", '["p", "q"]'),
        ("{.none}", "null"),
        ("{.absent.too}{.kind.too}{.items.too}", ""),
        ("{.items[?(@.name=='b')].count}", "2"),
        ('{.items[?(@.name != "b")].name}', "a c"),
        ("{.items[?(@.count>=2)].name}", "b c"),
        ("{.items[?(@.count<'x')].name}", ""),
        ("{.items[?(@.ok==true)].name}", "a"),
        ("{.items[?(@.ok)].name}", "a b"),
        ("{.items[?(@.labels.role=='decode')].name}", "c"),
        ('{range .items[*]}{.name}{"\\t"}{.count}{"\\n"}{end}', "a\t1\nb\t2\nc\t2.5\n"),
        ('{range .items[*]}{range .peers[*]}{@}{","}{end}{";"}{end}', "p,q,;;r,;"),
        ("{range .items[0:2]}{.name}={$.kind} {end}", "a=List b=List "),
        ("all: {.items[*].name}!", "all: a b c!"),
        ("{\"}\"}{'{'}", "}{"),
    ],
)
def test_what_a_template_selects(template: str, text: str) -> None:
    """Values are separated by spaces; absent ones are empty."""
    assert _filled(template) == text


def test_a_point_is_the_value_itself() -> None:
    """``.`` and ``$`` are the root."""
    assert _filled("{.}", "x") == _filled("{@}", "x") == _filled("{$}", "x") == "x"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{.items", "the brace of '{.items' is not closed"),
        ("{end}", "{end} without {range …}"),
        ("{range .items[*]}{.name}", "{range …} without {end}"),
        ("{range .a}" * 20, "more than 16 ranges"),
        ("{items}", "'items' is no path; write it like .items[*].name"),
        ("", "is no path"),
        ("{}", "is no path"),
        ("{.a.}", "has no name behind its point"),
        ("{.a b}", "cannot be read from ' b' on"),
        ("{.a[}", "is no index, slice, name or filter"),
        ("{.a[1}", "a bracket is not closed"),
        ("{.a[::0]}", "a slice's step is 0"),
        ("{.a[?(@.b && @.c)]}", "a filter is one comparison"),
        ("{.a[(@.length-1)]}", "is no index, slice, name or filter"),
    ],
)
def test_a_template_that_cannot_be_read_is_one_sentence(template: str, words: str) -> None:
    """The error has the position and what is expected there."""
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_template(template)


def test_what_cannot_be_seen_is_escaped() -> None:
    """Control characters of values are escaped; the template's own text is unchanged."""
    assert _filled('{.a}{"\\n"}', {"a": "e\n\x1b[2J"}) == "e\\n\\x1b[2J\n"


@given(st.text("{}[]().*@$?'\"\\,:=<ab 01", max_size=30))
def test_any_text_is_a_template_or_none(text: str) -> None:
    """The parser raises ValueError only; filling a parsed template raises nothing."""
    try:
        template = parse_template(text)
    except ValueError:
        return
    fill_template(template, _DOCUMENT)
