"""YAML as JSON knows it, with lines."""

from __future__ import annotations

import gc
import json
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.parsing.yaml_documents import MAX_CHARACTERS, MAX_VALUES, DocumentError, read_documents


def test_every_value_has_its_line() -> None:
    """Over several documents; empty ones are left out."""
    first, second = read_documents("a: 1\nb:\n  - x\n  - {c: d}\n---\n---\nz")
    assert (first.value, second.value) == ({"a": 1, "b": ["x", {"c": "d"}]}, "z")
    places = [(), ("a",), ("b",), ("b", 0), ("b", 1), ("b", 1, "c")]
    assert [first.line_of(place) for place in places] == [1, 1, 2, 3, 4, 4]
    assert first.line_of(("b", 1, "c", "absent", 3)) == 4
    assert second.line_of(("absent",)) == 7


def test_the_items_of_a_list_have_lines_of_their_own() -> None:
    """As if each were a document."""
    (document,) = read_documents("kind: List\nitems:\n- a: 1\n- b:\n    c: 2\n")
    one, two = document.items()
    assert (one.value, two.value) == ({"a": 1}, {"b": {"c": 2}})
    assert (one.line_of(()), two.line_of(()), two.line_of(("b", "c"))) == (3, 4, 5)
    (plain,) = read_documents("kind: Pod\n")
    assert list(plain.items()) == [plain]


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a: [1\nb", 2, "this is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("x: 1\na: *y", 2, "this is not YAML: found undefined alias 'y'"),
        ("a: 1\nb: 2\na: 3", 3, "'a' is there twice, first in line 1; leave one"),
        ("k:\n  a: 1\n  a: 1", 3, "'a' is there twice, first in line 2; leave one"),
        ("on: x", 1, "True is no name of a field; quote it"),
        ("1: x", 1, "1 is no name of a field; quote it"),
        ("? [a]\n: b", 1, "None is no name of a field; quote it"),
        ("b: 1\na: !!python/object/apply:os.system [ls]", 2, "tag:yaml.org,2002:python/object/apply:os.system is nothing that JSON can say; write plain values"),
        ("a: !!python/name:os.system x", 1, "'x' is nothing that JSON can say here; quote it"),
        ("a: !!binary aGk=", 1, "'aGk=' is nothing that JSON can say here; quote it"),
        ("a: !!timestamp 2026-13-45", 1, "'2026-13-45' is nothing that JSON can say here; quote it"),
        ("a: !!int x", 1, "'x' is nothing that JSON can say here; quote it"),
        ("a: !!bool x", 1, "'x' is nothing that JSON can say here; quote it"),
        ("a: .inf", 1, "'.inf' is nothing that JSON can say here; quote it"),
        ("a: .nan", 1, "'.nan' is nothing that JSON can say here; quote it"),
        ("a: 1" + ":1" * 20_000, 1, "is nothing that JSON can say here; quote it"),
        ("a: 1" + ":1" * 3_000 + ".5", 1, "is nothing that JSON can say here; quote it"),
        ("a: 0x" + "f" * 5000, 1, "is nothing that JSON can say here; quote it"),
        ("<<: {a: 1}", 1, "'<<' is nothing that JSON can say here; quote it"),
        ("a: !!set {x}", 1, "tag:yaml.org,2002:set is nothing that JSON can say; write plain values"),
        ("\ta: b", 1, "this is not YAML: found character '\\t' that cannot start any token"),
        ("a: \x00", 1, "this is not YAML: unacceptable character #x0000"),
        ("[" * 5000, 1, "this is more than 32 levels deep; write it flat"),
        ("{a: " * 33 + "1" + "}" * 33, 1, "this is more than 32 levels"),
        ("a: &a [*a]", 1, "this is more than 32 levels"),
        ("a: [" + "1," * MAX_VALUES + "]", 1, f"this is more than {MAX_VALUES} values"),
    ],
)  # fmt: skip
def test_a_syntax_error_names_its_line(text: str, line: int, sentence: str) -> None:
    """Never another kind of error."""
    with pytest.raises(DocumentError) as caught:
        read_documents(text)
    assert sentence in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize("documents", [1, 400])
def test_aliases_count_as_often_as_they_are_used(documents: int) -> None:
    """Nine lines that stand for a billion values are refused; so are many documents of many values."""
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9 if documents == 1 else 3)
    )
    with pytest.raises(DocumentError, match="this is more than 30000 values"):
        read_documents(f"---\n{bomb}" * documents)


@pytest.mark.parametrize(
    "uses", ["b: [" + ",".join(["*a"] * 2_000) + "]", "b: [" + ",".join(["{*a : 1}"] * 2_000) + "]"]
)
def test_the_characters_of_an_alias_count_as_often_as_it_is_used(uses: str) -> None:
    """Two hundred kilobytes that stand for four hundred megabytes are refused, as values and as names of fields."""
    with pytest.raises(DocumentError, match=f"this is more than {MAX_CHARACTERS} characters"):
        read_documents(f"a: &a {'x' * 200_000}\n{uses}")


def test_too_many_values_are_not_composed_to_the_last() -> None:
    """The refusal comes while the text is read: what is wrong behind it is never seen."""
    with pytest.raises(DocumentError, match="this is more than 100 values"):
        read_documents("a: [" + "1," * 200 + "]\nb: *absent", 100)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[? ", "- [", "a:\n" + " " * 40])
def test_what_is_too_deep_is_not_scanned_to_its_end(opening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scanner stops at the level, whatever opens it: with each token it looks at every open bracket again."""
    tokens: list[int] = []
    fetch = yaml.SafeLoader.fetch_more_tokens

    def counted(loader: yaml.SafeLoader) -> None:
        tokens.append(1)
        fetch(loader)

    monkeypatch.setattr(yaml.SafeLoader, "fetch_more_tokens", counted)
    text = "".join(" " * n + "a:\n" for n in range(1000)) if opening.startswith("a:") else opening * 5000
    with pytest.raises(DocumentError, match="this is more than 32 levels deep; write it flat"):
        read_documents(text)
    assert len(tokens) < 200


@pytest.mark.parametrize("text", ["[" * 33 + "]" * 33, "- " * 32 + "1", "{a: " * 32 + "1" + "}" * 32])
def test_thirty_two_levels_are_read(text: str) -> None:
    """In brackets and in lines."""
    assert len(read_documents(text)) == 1


@pytest.mark.parametrize("text", ["[" + "1," * 500 + "]", "[" + "1," * 2_000 + "]"])
def test_no_node_is_left_for_the_garbage_collection(text: str) -> None:
    """A node takes a kilobyte, and a full collection of a large agent comes late."""
    gc.collect()
    gc.disable()
    try:
        with suppress(DocumentError):
            read_documents(text, 1_000)
        assert not [each for each in gc.get_objects() if isinstance(each, yaml.Node)]
    finally:
        gc.enable()


def test_moments_stay_text() -> None:
    """A manifest's expiry is checked as it was written."""
    assert read_documents("a: 2026-11-20T12:00:00Z")[0].value == {"a": "2026-11-20T12:00:00Z"}


_SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(-1e9, 1e9) | st.text(max_size=9)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(_VALUES.filter(lambda value: value is not None), st.booleans())
def test_whatever_json_can_say_reads_back(value: Any, flow: bool) -> None:
    """Written by PyYAML, in either style."""
    (document,) = read_documents(yaml.safe_dump(value, default_flow_style=flow))
    assert json.dumps(document.value, sort_keys=True) == json.dumps(value, sort_keys=True)


@given(st.text(st.sampled_from("abc:-[]{}&*!?|>'\"%@`#,\n \t0\\"), max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """With a line of that text."""
    try:
        json.dumps([document.value for document in read_documents(text)])
    except DocumentError as error:
        assert 1 <= error.line <= len(text.splitlines()) + 1  # noqa: PT017
