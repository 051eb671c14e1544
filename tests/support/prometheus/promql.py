"""Just enough of PromQL to see which names and labels an expression uses; promtool judges the syntax."""

from __future__ import annotations

import re
from typing import NamedTuple

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


class Selector(NamedTuple):
    """A metric with the labels it is selected by."""

    metric: str
    labels: frozenset[str]


def selectors(expression: str) -> list[Selector]:
    """Return every ``metric{label=...}``."""
    bare = _STRING.sub('""', expression)
    return [Selector(name, frozenset(_MATCHER.findall(inside))) for name, inside in _SELECTOR.findall(bare)]


def names(expression: str) -> set[str]:
    """Return every word outside strings: metrics and recording rules, and labels, functions and operators."""
    return set(_NAME.findall(_STRING.sub('""', expression)))


def metrics(expression: str) -> set[str]:
    """Return every name of ours: metrics, recording rules, and those of the agent's process."""
    return {name for name in names(expression) if "penstock_" in name or name.startswith("process_")}


def groupings(expression: str, *words: str) -> set[str]:
    """Return the labels in ``by (...)`` and its like; only those of *words*, if given."""
    bare = _STRING.sub('""', expression)
    return {
        label
        for word, inside in _GROUPING.findall(bare)
        if not words or word in words
        for label in _NAME.findall(inside)
    }
