"""Label selectors and durations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import (
    Requirement,
    Selection,
    Target,
    format_labels,
    parse_key,
    parse_labels,
    select,
)
from penstock.agent.parsing.quantities import format_duration, parse_duration

from tests.support.policy.policies import manifest, target

_LABELS = {"role": "decode", "tier": "a", "zone": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("role=decode", True),
        ("role==decode", True),
        ("role=prefill", False),
        ("role!=prefill", True),
        ("absent!=x", True),
        ("role in (decode,prefill)", True),
        ("role in ( prefill , encoder )", False),
        ("role notin (prefill)", True),
        ("absent notin (x)", True),
        ("tier", True),
        ("absent", False),
        ("!absent", True),
        ("!tier", False),
        ("zone=", True),
        ("role=decode,tier in (a,b),!canary", True),
        ("role=decode, tier=b", False),
    ],
)
def test_a_selector_means_what_kubernetes_means(text: str, matches: bool) -> None:
    """Each operator, alone and combined."""
    assert Selection(parse_labels(text)).matches(Target(EngineKey("", "0"), "m", _LABELS)) is matches


@pytest.mark.parametrize(
    "text", ["role=", "=x", "role=(", "role in decode", "role in (a", "a,,b", ",", "!", "a b", "x in (a b)", "role=a=b"]
)  # fmt: skip
def test_a_selector_that_cannot_be_read_is_named(text: str) -> None:
    """The sentence holds the term, except that an empty value is a value."""
    if text == "role=":
        assert parse_labels(text) == (Requirement("role", "In", ("",)),)
        return
    with pytest.raises(ValueError, match=r"selector .* cannot be read; write"):
        parse_labels(text)


_WORDS = st.from_regex(r"[a-z0-9]([-a-z0-9_.]{0,8}[a-z0-9])?", fullmatch=True)
_REQUIREMENTS = st.builds(
    Requirement, _WORDS, st.sampled_from(["In", "NotIn"]), st.lists(_WORDS, min_size=1, max_size=3).map(tuple)
) | st.builds(Requirement, _WORDS, st.sampled_from(["Exists", "DoesNotExist"]))


@given(st.lists(_REQUIREMENTS, max_size=4).map(tuple))
def test_what_is_written_reads_back(requirements: tuple[Requirement, ...]) -> None:
    """format_labels and parse_labels are inverse."""
    assert parse_labels(format_labels(requirements)) == requirements


def test_models_and_keys_narrow_a_selection() -> None:
    """Any of the globs, and any of the keys."""
    engines = [target("0", model="llama-7b"), target("1", model="qwen"), target("2", model="llama-70b")]
    assert [item.key.engine for item in select(engines, Selection(models=("llama-*", "x")))] == ["0", "2"]
    assert [item.key.engine for item in select(engines, Selection(keys=frozenset({EngineKey("", "1")})))] == [
        "1"
    ]
    assert Selection().everything
    assert not Selection(models=("*",)).everything


def test_the_selector_of_a_manifest_joins_labels_and_expressions() -> None:
    """All of its parts have to hold."""
    selection = manifest(
        selector={
            "matchLabels": {"role": "decode"},
            "matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}],
            "models": ["tiny"],
        }
    ).spec.selector.selection
    assert selection.matches(target(role="decode"))
    assert not selection.matches(target(role="decode", canary="1"))
    assert not selection.matches(target(role="decode", model="other"))
    assert not selection.matches(target(role="prefill"))


@pytest.mark.parametrize(
    ("text", "key"), [("0", ("", "0")), ("decode/0", ("decode", "0")), ("a/b/1", ("a/b", "1"))]
)
def test_an_engine_is_named_by_its_index_or_with_its_server(text: str, key: tuple[str, str]) -> None:
    """What EngineKey prints reads back."""
    assert parse_key(text) == key
    assert str(parse_key(text)) == text


@pytest.mark.parametrize("text", ["", "decode/"])
def test_an_engine_without_an_index_is_refused(text: str) -> None:
    """The sentence shows both forms."""
    with pytest.raises(ValueError, match=r"write its index \(0\) or server/index"):
        parse_key(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30s", timedelta(seconds=30)),
        ("1h30m", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("1.5s", timedelta(seconds=1.5)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
    ],
)
def test_durations_are_read(text: str, value: timedelta) -> None:
    """Units d, h, m, s and ms."""
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "1 s", "1w", "5s!", "999999999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Also one that no timedelta can hold."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(0, 10**10))
def test_a_duration_reads_back_as_written(milliseconds: int) -> None:
    """format_duration and parse_duration are inverse."""
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value
