"""What a change of a policy did, in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from penstock.agent.page.details.policy import change_words
from penstock.proto.v1 import admin_pb2 as admin


def _manifest(spec: dict[str, Any] | None) -> str:
    return "" if spec is None else json.dumps({"spec": spec})


@pytest.mark.parametrize(
    ("action", "old", "new", "words"),
    [
        ("apply", None, {"priority": 3}, ["created", "priority: 3"]),
        (
            "apply",
            {"kvLoadFailure": {"action": "recompute"}},
            {"kvLoadFailure": {"action": "fail"}, "priority": 9},
            ["kvLoadFailure.action: recompute → fail", "priority: not set → 9"],
        ),
        ("apply", {"priority": 9}, {}, ["priority: 9 → not set"]),
        ("apply", {"priority": 9}, {"priority": 9}, ["nothing in its spec"]),
        ("rollback", None, {"priority": 3}, ["rollback", "priority: 3"]),
        ("delete", {"priority": 3}, None, ["delete"]),
        (
            "apply",
            {},
            dict.fromkeys("abcdefgh", 1),
            [*(f"{name}: not set → 1" for name in "abcdef"), "2 more"],
        ),
    ],
)
def test_a_change_says_what_it_did(
    action: str, old: dict[str, Any] | None, new: dict[str, Any] | None, words: list[str]
) -> None:
    """Field by field, the first of many."""
    entry = admin.AuditEntry(
        action=action, old_manifest_json=_manifest(old), new_manifest_json=_manifest(new)
    )
    assert [*change_words(entry)] == words
