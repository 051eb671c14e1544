"""Policies from texts, and the errors: file, line, field."""

from __future__ import annotations

from datetime import timedelta
from textwrap import dedent
from typing import Any

import pytest
import yaml
from penstock.agent.errors import FilesError
from penstock.agent.policy.files.parse import parse_files

from tests.support.policy.policies import NOW, document, manifest

_GOOD = """
    apiVersion: penstock.dev/v1alpha1
    kind: TransferPolicy
    metadata: {name: base}
    spec:
      selector: {matchLabels: {role: decode}}
      kvLoadFailure: {action: recompute}
"""


def _policy(text: str = _GOOD, **replaced: str) -> str:
    text = dedent(text).strip() + "\n"
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return text


def _yaml(name: str = "base", **spec: Any) -> str:
    return yaml.safe_dump(document(name, **spec), sort_keys=False)


def test_all_documents_of_all_files_are_policies() -> None:
    """Each document of each file is a policy of its file; Lists are expanded, ``status`` is ignored."""
    listed = yaml.safe_dump({"kind": "List", "items": [document("c"), {**document("d"), "status": {"x": 1}}]})
    checked = parse_files(
        {"b.yml": listed, "a.yaml": f"---\n{_policy()}---\n{_policy(base='b')}---\n"}, (), NOW
    )
    assert [(item.manifest.name, item.owner) for item in checked.policies] == [
        ("base", "file:a.yaml"),
        ("b", "file:a.yaml"),
        ("c", "file:b.yml"),
        ("d", "file:b.yml"),
    ]
    assert parse_files({"a.yaml": "kind: List\nitems: []\n"}, (), NOW).policies == ()


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"a.yaml": ""}, "a.yaml:1: the file has no policy; remove it, or write kind: List and items: []"),
        ({"a.yaml": "# later\n---\n"}, "a.yaml:1: the file has no policy"),
        ({"a.yaml": "a: [\n"}, "a.yaml:2: this is not YAML: "),
        ({"a.yaml": "3"}, "a.yaml:1: the manifest is 3; write one object"),
        ({"a.yaml": "kind: List\nitems: 3\n"}, "a.yaml:2: a List has no items; write items: [] for none"),
        ({"a.yaml": _policy(recompute="recmpute")}, "a.yaml:6: policy 'base': spec.kvLoadFailure.action is 'recmpute'; use one of recompute, fail, auto"),
        ({"a.yaml": _policy(kvLoadFailure="kvLoadfailure")}, "a.yaml:6: policy 'base': spec.kvLoadfailure is not a field; did you mean kvLoadFailure?"),
        ({"a.yaml": _policy(TransferPolicy="ConfigMap")}, "a.yaml:2: policy 'base': kind is 'ConfigMap'; use TransferPolicy"),
        ({"a.yaml": _policy(base="Base!")}, "a.yaml:3: policy 'Base!': metadata.name is 'Base!'; use 1 to 63 lower-case letters"),
        ({"a.yaml": _policy(base="3")}, "a.yaml:3: metadata.name is 3; use 1 to 63 lower-case letters"),
        ({"a.yaml": _policy(**{"{name: base}": "{}"})}, "a.yaml:3: metadata.name is missing; use 1 to 63 lower-case letters"),
        ({"a.yaml": _policy(decode="true")}, "a.yaml:5: policy 'base': spec.selector.matchLabels.role is true; use labels and their values, as quoted text"),
        ({"a.yaml": _policy() + "  expiresAt: 30m\n"}, "a.yaml:7: policy 'base': spec.expiresAt is '30m'; use a point in time with its zone"),
        ({"a.yaml": _policy() + "  priority: 900\n"}, "a.yaml:4: policy 'base': spec.priority is 900, which is break-glass; set spec.expiresAt"),
        ({"a.yaml": _policy() + f"  priority: 900\n  expiresAt: {(NOW + timedelta(hours=5)).isoformat()}\n"}, "a.yaml:8: policy 'base': spec.expiresAt is 2026-11-20T17:00:00Z, but a policy of priority 900 may last at most 4h"),
        ({"a.yaml": _policy() + "---\n" + _policy(recompute="x")}, "a.yaml:13: policy 'base': spec.kvLoadFailure.action is 'x'"),
        ({"a.yaml": _policy(), "b.yaml": _policy() + "---\n" + _policy(base="b")}, "b.yaml:1: policy 'base' is in a.yaml:1 already; keep one"),
        ({"a.yaml": _policy() + "---\n" + _policy()}, "a.yaml:8: policy 'base' is in a.yaml:1 already; keep one"),
        ({"a.yaml": _policy(**{"metadata:": "metadata: {name: x}\nmetadata:"})}, "a.yaml:4: 'metadata' is there twice, first in line 3; leave one"),
        ({"a.yaml": "---\n".join(_policy(base=f"p{n}") for n in range(257))}, "there are more than 256 policies; combine some"),
        ({"a.yaml": _policy().replace("spec:", f"  annotations: {{{', '.join(f'n{n}: {chr(120) * 4096}' for n in range(17))}}}\nspec:").replace("{name: base}", "\n  name: base")}, "a.yaml:1: policy 'base': the manifest has more than 65536 bytes"),
    ],
)  # fmt: skip
def test_a_mistake_anywhere_refuses_everything(texts: dict[str, str], sentence: str) -> None:
    """An error starts with file and line, and has policy, field, value and what is accepted."""
    with pytest.raises(FilesError) as caught:
        parse_files({"good.yaml": _yaml("good"), **texts}, (), NOW)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_expired_policy_is_left_out_and_reported() -> None:
    """An expired policy is left out and reported; the other policies are parsed."""
    text = _yaml("gone", expiresAt="2026-11-01T00:00:00Z") + "---\n" + _yaml("stays")
    checked = parse_files({"a.yaml": text}, (), NOW)
    assert [item.manifest.name for item in checked.policies] == ["stays"]
    assert checked.expired == ("a.yaml:1: policy gone",)


def test_the_expiry_of_what_holds_already_is_not_checked_again() -> None:
    """The expiry of a policy in force is not validated again, also after a clock step."""
    spec: dict[str, Any] = {"priority": 950, "expiresAt": (NOW + timedelta(hours=5)).isoformat()}
    known = {manifest("base", **spec).canonical}
    assert len(parse_files({"a.yaml": _yaml(**spec)}, known, NOW).policies) == 1
    with pytest.raises(FilesError):
        parse_files({"a.yaml": _yaml(**spec)}, (), NOW)
