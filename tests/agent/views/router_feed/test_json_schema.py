"""The published JSON Schema of the feed for routers: current, and open for later fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator
from penstock.agent.views.router_feed.json_schema import schema, text
from penstock.agent.views.router_feed.model import State

_ROOT = Path(__file__).parents[4]
_PUBLISHED = _ROOT / "docs" / "reference" / "router-feed.schema.json"
_GUIDE = (_ROOT / "docs" / "guides" / "routers.md").read_text()
_EXAMPLES = re.findall(r"```json\n(.*?)```", _GUIDE, re.DOTALL)


def test_the_published_schema_is_current() -> None:
    """The file equals the output of ``make schema``."""
    assert _PUBLISHED.read_text() == text()
    Draft202012Validator.check_schema(json.loads(text()))
    assert "additionalProperties" not in json.dumps(schema()).replace('"additionalProperties": {', "")


@pytest.mark.parametrize("example", _EXAMPLES)
def test_the_examples_of_the_guide_are_valid(example: str) -> None:
    """Those of an agent and of a relay."""
    Draft202012Validator(schema()).validate(json.loads(example))


def test_the_guide_has_an_example_of_each_and_every_state() -> None:
    """Two examples, and a table of the states."""
    assert [json.loads(each)["kind"] for each in _EXAMPLES] == ["agent", "relay"]
    assert set(re.findall(r"^\| `(\w+)` \|", _GUIDE, re.MULTILINE)) >= set(get_args(State))
