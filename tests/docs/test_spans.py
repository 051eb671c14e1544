"""docs/reference/spans.md names what the code emits, and nothing else."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.sdk_spans import SpanConverter, resource_attributes
from penstock.proto.names import words
from penstock.proto.v1.common_pb2 import ErrorType

from tests.support.agent.every_span import every_span
from tests.support.agent.stories import DECODE_CORE

_TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "spans.md").read_text()
_NAME = re.compile(r"`([^`]+)`")
_WITH_POLICY = "`penstock.request`, `kv.load`, `ec.load`, `penstock.recompute`, `penstock.policy.apply`"
# What is added to spans that are built: by the sampling, by the export, by 'agentctl trace'.
_ADDED = {
    semconv.SAMPLING: "every span of a request",
    semconv.REPLAYED: "every span",
    semconv.HISTORY_CUT: f"`{semconv.REQUEST}`",
    **dict.fromkeys((semconv.POLICY_NAME, semconv.POLICY_GENERATION, semconv.POLICY_AUTHOR), _WITH_POLICY),
}
_NAMES = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)} - {
    semconv.SCHEMA_URL
}


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table of a section, without its head."""
    section = _TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def _documented() -> dict[str, str]:
    rows = [
        row
        for heading in (
            "Attributes of OpenTelemetry's vocabulary",
            "Attributes of vLLM's own spans",
            "Attributes of Penstock",
        )
        for row in _rows(heading)
    ]
    found = {name: on for cell, on, _ in rows for name in _NAME.findall(cell)}
    assert len(found) == len(rows)
    return found


def test_every_span_and_its_kind() -> None:
    """The table of spans has each of them, with its kind."""
    emitted = {(f"`{span.name}`", "CLIENT" if span.client else "INTERNAL") for span in every_span()}
    assert {(name, kind) for name, kind, _ in _rows("Spans")} == emitted


def _without_gate(name: str) -> str:
    return re.sub(rf"(?<=^{semconv.FIRST_TOKEN_GATE}\.).+", "…", name)


def test_every_attribute_and_its_spans() -> None:
    """Each attribute stands with the spans that can have it."""
    emitted: defaultdict[str, set[str]] = defaultdict(set)
    for span in every_span():
        for name in span.attributes:
            emitted[_without_gate(name)].add(f"`{span.name}`")
    documented = _documented()
    assert {name: documented.pop(name) for name in _ADDED} == _ADDED
    assert {name: set(on.split(", ")) for name, on in documented.items()} == emitted


def test_every_attribute_of_the_resource() -> None:
    """The table of the resource is complete for an engine that told everything."""
    documented = {name for cell, _ in _rows("Resource") for name in _NAME.findall(cell)}
    emitted = resource_attributes(replace(DECODE_CORE, vllm_version="1"), "host")
    assert {re.sub(rf"(?<=^{semconv.LABEL}\.).+", "…", name) for name in emitted} == documented


def test_no_name_is_left_over() -> None:
    """Each name of the vocabulary is documented; those of OpenTelemetry stand apart from ours."""
    spans = {name for row in _rows("Spans") for name in _NAME.findall(row[0])}
    resource = {name.removesuffix(".…") for cell, _ in _rows("Resource") for name in _NAME.findall(cell)}
    documented = {name.removesuffix(".…") for name in _documented()}
    assert spans | resource | documented | {semconv.LINK_TO} == _NAMES
    assert all(
        name.startswith("penstock.")
        for row in _rows("Attributes of Penstock")
        for name in _NAME.findall(row[0])
    )


def test_the_schema_and_the_words_of_errors() -> None:
    """The schema URL is that of the spans, and each error type is listed."""
    readable = SpanConverter().readable(next(iter(every_span())), replayed=False)
    assert f"`{readable.resource.schema_url}`" in _TEXT
    assert {"_OTHER", *words(ErrorType)} <= set(_NAME.findall(_TEXT))


def test_error_type_is_on_errors_only() -> None:
    """OpenTelemetry: an operation that succeeded has no ``error.type``, one that failed has."""
    for span in every_span():
        assert (semconv.ERROR_TYPE in span.attributes) == (span.error is not None), span.name
