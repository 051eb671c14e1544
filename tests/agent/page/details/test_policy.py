"""What a change of a policy did, in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from penstock.agent.page.details.policy import change_words, each_once
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


@pytest.mark.parametrize("agents", [1, 3])
def test_what_several_agents_say_is_one_change_and_a_change_made_again_is_another(agents: int) -> None:
    """There and back and there again are three changes, the newest first, whatever an agent's clock is ahead."""
    entries = [
        admin.AuditEntry(author="ada", action="apply", old_hash=old, new_hash=new)
        for old, new in ("ab", "ba", "ab")
        for _ in range(agents)
    ]
    for number, entry in enumerate(entries):
        entry.time.FromSeconds(1_000 + 60 * (number // agents) + number % agents)
    assert [(each.old_hash, each.new_hash) for each in each_once(entries)] == [
        ("a", "b"),
        ("b", "a"),
        ("a", "b"),
    ]
