"""A manifest in both forms of the editor: values by path, changes, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from penstock.agent.page.details.policy_fields import (
    changed,
    edit_fields,
    manifest_of,
    manifest_text,
    write_draft,
)
from penstock.agent.page.wire import AdminCalls, AnswerError
from penstock.agent.policy.manifest import FormField, check_manifest, form_fields
from penstock.agent.policy.manifest.json_schema import schema

from tests.support.policy.policies import document

_VALIDATOR = Draft202012Validator(schema())
_FIELDS = [each for each in form_fields() if each.kind != "yaml"]
_TEXTS = {"duration": "45s", "share": "0.25", "factor": "1.5", "text": "2999-01-01T00:00Z"}


def _sample(field: FormField) -> str:
    if field.kind == "count":
        return f"{field.least:.0f}"
    return field.choices[-1] if field.kind == "choice" else _TEXTS[field.kind]


def _value(manifest: dict[str, Any], path: str) -> str:
    (value,) = (each.value for each in edit_fields(manifest) if each.path == path)
    return value


def _draft(body: dict[str, Any]) -> Any:
    calls: Any = AdminCalls.__new__(AdminCalls)
    return json.loads(asyncio.run(write_draft(calls, body, "")))


@pytest.mark.parametrize("field", _FIELDS, ids=lambda field: field.path)
def test_each_field_is_set_and_removed(field: FormField) -> None:
    """What is typed makes a manifest that the schema and the agent take, and reads back; without it all is as before."""
    # An ejection needs no other; a percent has its section.
    before = document()
    written = changed(before, {field.path: _sample(field)})
    _VALIDATOR.validate(written)
    check_manifest(written)
    assert _value(written, field.path) == _sample(field)
    assert before == document()
    unset = changed(written, {field.path: ""})
    assert unset == (before if field.path != "kvLoadFailure.action" else {**before, "spec": {}})
    assert changed(before, {field.path: None}) == unset


def test_all_fields_at_once() -> None:
    """They do not stand in each other's way, and the YAML of all reads as what was set."""
    written = changed(document(), {each.path: _sample(each) for each in _FIELDS})
    check_manifest(written)
    assert manifest_of({"manifest": manifest_text(written)}) == written


def test_what_is_set_comes_first() -> None:
    """With the sections below its own; fields of no section are last."""
    found = edit_fields(document(deferral={"onTimeout": "fail"}, selector={"models": ["llama-*"]}))
    sections = list(dict.fromkeys(each.section for each in found))
    assert sections[:4] == ["kvLoadFailure", "kvLoadFailure.recomputeBudget", "deferral", "selector"]
    assert sections[-1] == ""
    (models,) = (each for each in found if each.path == "selector.models")
    assert (models.kind, models.value) == ("yaml", "[llama-*]")


@pytest.mark.parametrize(
    ("path", "written", "sentence"),
    [
        ("deferral.maxTransferWait", "2h", "spec.deferral.maxTransferWait is '2h'; use a duration"),
        ("kvLoadFailure.maxRecomputeTokens", "many", "maxRecomputeTokens is 'many'; use a whole number"),
        ("kvLoadFailure.maxRecomputeTokens", "1.5", "maxRecomputeTokens is '1.5'; use a whole number"),
        ("telemetry.traceSampleRatio", "7", "traceSampleRatio is 7; use a number from 0 to 1"),
        ("mode", "off", "spec.mode is 'off'; use one of enforce, observe"),
    ],
)
def test_a_wrong_value_reaches_the_check_of_manifests(path: str, written: str, sentence: str) -> None:
    """Which has the sentence for it."""
    with pytest.raises(Exception, match=sentence):
        check_manifest(changed(document(), {path: written}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"no.such": "1"}, "'no.such' is no field of the form"),
        ({"selector.models": "a"}, "'selector.models' is no field of the form"),
        ({"deferral.onTimeout": "fail"}, "spec.deferral is no object; correct it in the YAML"),
        (["deferral.onTimeout"], "changes are texts"),
        ({"mode": 7}, "changes are texts"),
        ({"mode": "x" * 201}, "changes are texts"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(changes: Any, sentence: str) -> None:
    """Nothing is passed over."""
    body = {"manifest": manifest_text(document(deferral=5)), "changes": changes}
    with pytest.raises(AnswerError, match=sentence):
        manifest_of(body)


def test_a_draft_is_both_forms() -> None:
    """The YAML stays as it was typed while the form changes nothing; a draft need not be right."""
    typed = manifest_text(document(priority=7)) + "# a comment\n"
    found = _draft({"name": "decode-default", "manifest": typed, "changes": {}})
    assert found["manifest"] == typed
    assert {each["path"]: each["value"] for each in found["fields"]}["priority"] == "7"
    found = _draft({"manifest": typed, "changes": {"priority": "5000"}})
    assert "priority: 5000" in found["manifest"]
    with pytest.raises(AnswerError, match="not of 'other'"):
        _draft({"name": "other", "manifest": typed})
    with pytest.raises(AnswerError, match="too long for the form"):
        _draft({"manifest": typed + "#" * 70_000})
