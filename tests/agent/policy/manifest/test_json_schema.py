"""The published JSON Schema: current, valid, and never stricter than the agent."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from penstock.agent.errors import ManifestError
from penstock.agent.parsing.yaml_documents import read_documents
from penstock.agent.policy.manifest.json_schema import schema, text
from penstock.agent.policy.manifest.manifest import check_manifest

from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[4]
_PUBLISHED = _ROOT / "docs" / "reference" / "transferpolicy.schema.json"
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
_VALIDATOR = Draft202012Validator(schema())


def test_the_published_schema_is_current() -> None:
    """The file equals the output of ``make schema``."""
    assert _PUBLISHED.read_text() == text()
    Draft202012Validator.check_schema(json.loads(text()))


@cache
def _examples() -> list[tuple[str, dict[str, Any]]]:
    """Return each policy in the documentation and the manifests, by file name."""
    pages = [_ROOT / "README.md", *_ROOT.glob("docs/**/*.md")]
    texts = [(page.name, block) for page in pages for block in _BLOCK.findall(page.read_text())]
    texts += [(path.name, path.read_text()) for path in _ROOT.glob("deploy/**/*.yaml")]
    # To parse the others is nearly all of the work, in each process that collects tests.
    texts = [(name, block) for name, block in texts if "TransferPolicy" in block]
    return [(name, policy) for name, block in texts for policy in _policies(block)]


def _policies(block: str) -> Iterator[dict[str, Any]]:
    for value in (read.value for read in read_documents(block)):
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "TransferPolicy":
            yield value
        elif kind == "ConfigMap":
            for data in value["data"].values():
                yield from _policies(data)


@pytest.mark.parametrize(("place", "example"), _examples())
def test_every_example_of_the_documentation_is_valid(place: str, example: dict[str, Any]) -> None:
    """Each example is valid for the schema and for the agent."""
    assert place
    _VALIDATOR.validate(example)
    check_manifest(example)


def test_the_documentation_has_examples() -> None:
    """The guide and the deployment manifests contain policies."""
    assert {place for place, _ in _examples()} >= {"policies.md", "policies.yaml"}


@pytest.mark.parametrize(
    "change",
    [
        {"kvLoadFailure": {"action": "recmpute"}},
        {"kvLoadfailure": {}},
        {"kvLoadFailure": {"maxRecomputeTokens": -1}},
        {"kvLoadFailure": {"maxRecomputeTokens": "9"}},
        {"deferral": {"maxStartWait": "30"}},
        {"deferral": {"maxStartWait": 5}},
        {"telemetry": {"traceSampleRatio": 1.5}},
        {"selector": {"matchLabels": {"canary": True}}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        {"priority": 1001},
        {"priority": 900},
        {"priority": 900, "expiresAt": None},
        {"expiresAt": "30m"},
        {"kvLoadFailure": {"recomputeBudget": {"tokensPerSecond": True}}},
    ],
)
def test_mistakes_are_found_before_the_agent_sees_them(change: dict[str, Any]) -> None:
    """The schema refuses what an editor can mark."""
    assert not _VALIDATOR.is_valid(document(**change))
    with pytest.raises(ManifestError):
        check_manifest(document(**change))


_WORDS = st.sampled_from(
    ["recompute", "fail", "auto", "30s", "1h30m", "role", "In", "Exists", "", "2999-01-01T00:00Z", "observe"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1001) | st.floats(-1, 2) | _WORDS,
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["action", "maxStartWait", "failures", "key", "operator", "values", "role"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(
            ["selector", "priority", "expiresAt", "mode", "kvLoadFailure", "deferral", "telemetry"]
        ),
        _VALUES | st.fixed_dictionaries({"matchExpressions": st.lists(_VALUES, max_size=2)}),
        max_size=3,
    )
)
def test_what_the_agent_takes_is_valid(spec: dict[str, Any]) -> None:
    """Each manifest that the agent accepts is valid for the schema."""
    try:
        check_manifest(document(**spec))
    except ManifestError:
        return
    _VALIDATOR.validate(document(**spec))
