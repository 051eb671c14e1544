"""Each search of docs/guides/jaeger.md finds what the agent emits: its service, its operation, its tags on one span."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.sdk_spans import resource_attributes, service_name
from penstock.proto.names import words
from penstock.proto.v1.common_pb2 import Role

from tests.support.agent.every_span import every_span
from tests.support.agent.stories import DECODE_CORE, source

_TEXT = (Path(__file__).parents[2] / "docs" / "guides" / "jaeger.md").read_text()
_ROWS = [
    tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
    for line in _TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| question")
]
# What is added to spans of requests when they are exported.
_ADDED = {
    semconv.SAMPLING: {"forced"},
    semconv.REPLAYED: {"true"},
    **{name: set() for name in (semconv.POLICY_NAME, semconv.POLICY_GENERATION, semconv.POLICY_AUTHOR)},
}
_SERVICES = {service_name(source(1, "", role)) for role in words(Role)} | {service_name(source(1, "", ""))}


def _emitted() -> dict[str, list[dict[str, str]]]:
    found: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for span in every_span():
        tags = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in span.attributes.items()
        }
        # Jaeger's tag of a status ERROR.
        found[span.name].append({**tags, **({"error": "true"} if span.error is not None else {})})
    return found


_EMITTED = _emitted()


@pytest.mark.parametrize(
    ("question", "service", "operation", "tags", "least"), _ROWS, ids=[row[0] for row in _ROWS]
)
def test_a_search_finds_a_span(question: str, service: str, operation: str, tags: str, least: str) -> None:
    """One span of the operation has all the tags, with the values that stand there; capitals stand for any."""
    assert question.endswith("?")
    assert service in _SERVICES
    wanted = dict(pair.split("=", 1) for pair in tags.split())
    assert re.fullmatch(r"(\d+(ms|s))?", least)
    assert wanted or least
    assert any(all(_fits(span, *pair) for pair in wanted.items()) for span in _EMITTED[operation])


def _fits(span: dict[str, str], tag: str, value: str) -> bool:
    if tag in _ADDED:
        return not _ADDED[tag] or value in _ADDED[tag]
    return tag in span and (value.isupper() or span[tag] == value)


def test_each_operation_has_a_search() -> None:
    """None is forgotten; the layers of a rebalance are found through it."""
    assert {operation for _, _, operation, _, _ in _ROWS} == _EMITTED.keys() - {semconv.EPLB_LAYER}


def test_services_and_resource_attributes_exist() -> None:
    """The services are those of the roles; the tags to narrow a search are on the resource."""
    named = re.search(r"\*\*Service\*\* is (.*?)\*\*Operation", _TEXT, re.DOTALL)
    assert named is not None
    assert {name for name in re.findall(r"`([\w-]+)`", named[1]) if name.startswith("vllm")} == _SERVICES
    narrowing = re.search(r"Resource attributes are searched(.*?)\n\n", _TEXT, re.DOTALL)
    assert narrowing is not None
    tags = {pair.partition("=")[0] for pair in re.findall(r"`(\S+=\S+)`", narrowing[1])}
    assert tags
    assert tags <= resource_attributes(DECODE_CORE, "host").keys() | {semconv.MODEL}
