"""agentctl diff, against the real admin service."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.policy.store.interface import OwnedManifest
from penstock.agent.views.field_diff import differences
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.policy.policies import action, document, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_DOCUMENTS = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
)


@given(_DOCUMENTS, _DOCUMENTS)
def test_what_is_the_same_has_no_difference_and_the_other_way_round_mirrors_it(left: Any, right: Any) -> None:
    """For any two documents."""
    left, right = {"x": left}, {"x": right}
    assert differences(left, left) == []
    mirrored = {(item.field, item.right, item.left) for item in differences(right, left)}
    assert {tuple(item) for item in differences(left, right)} == mirrored


def _cells(result: Result) -> list[list[str]]:
    assert result.exit_code == 1, result.stderr
    return [[cell.strip() for cell in line.split("   ") if cell] for line in result.stdout.splitlines()]


def test_generations_of_a_policy(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The current generation against the previous or a given one; a deleted policy against nothing."""
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "recompute", "--reason", "first")
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "auto", "--priority", "200")
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "fail", "-l", "role=decode")
    assert _cells(agentctl("diff", "policy", "p")) == [
        ["FIELD", "GENERATION 2", "GENERATION 3"],
        ["spec.kvLoadFailure.action", "auto", "fail"],
        ["spec.selector.matchLabels.role", "-", "decode"],
    ]
    first = _cells(agentctl("diff", "policy", "p", "--generation", "1"))
    assert first[0] == ["FIELD", "GENERATION 1", "GENERATION 3"]
    assert ["spec.priority", "-", "200"] in first
    assert first[-1] == ["annotations.penstock.dev/reason", "first", "-"]
    agentctl("delete", "policy", "p")
    assert _cells(agentctl("diff", "policy", "p"))[0] == ["FIELD", "GENERATION 3", "NOTHING"]
    for arguments, words in (
        (("q",), "policy 'q' never existed"),
        (("p", "--generation", "9"), "no generation 9 in the audit log; it has 1, 2, 3"),
    ):
        result = agentctl("diff", "policy", *arguments)
        assert (result.exit_code, words in result.stderr) == (2, True)


def test_a_file_against_what_holds(harness: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """The diff has what apply would change in the policy and in each engine; it changes nothing."""
    harness.engine("0")
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump_all([document("other"), document("p", kvLoadFailure=action("auto"))]))
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "recompute")
    result = agentctl("diff", "policy", "p", str(path))
    assert result.stdout.splitlines()[0].split() == ["FIELD", "GENERATION", "1", str(path)]
    assert "kvLoadFailure.action   recompute (p)   auto (p)" in result.stdout
    assert len(harness.store.policies()) == 1
    seen = json.loads(agentctl("diff", "policy", "p", str(path), "-o", "json").stdout)
    assert seen["differences"] == [{"field": "spec.kvLoadFailure.action", "from": "recompute", "to": "auto"}]
    assert seen["engines"][0]["fields"][0]["newValue"] == "auto"
    assert result.exit_code == agentctl("diff", "policy", "p", str(path), "--exit-code").exit_code == 1
    agentctl("apply", "--all", "-f", str(path))
    same = agentctl("diff", "policy", "p", str(path))
    assert (same.exit_code, same.stdout) == (0, f"policy p: generation 2 and {path} are the same\n")
    wrong = agentctl("diff", "policy", "nope", str(path))
    assert (wrong.exit_code, wrong.stderr.startswith(f"agentctl: {path} has no policy 'nope'")) == (2, True)


def test_a_policy_that_belongs_to_a_file_can_be_compared(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path
) -> None:
    """A policy from a file is read-only for agentctl, and diff reads it."""
    harness.run(harness.store.replace_files([OwnedManifest(manifest("p"), "file:base.yaml")]))
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(document("p", kvLoadFailure=action("auto"))))
    result = agentctl("diff", "policy", "p", str(path))
    assert result.exit_code == 1, result.stderr
    assert result.stdout.splitlines()[1].split() == ["spec.kvLoadFailure.action", "recompute", "auto"]
    assert "changes in engines are unknown: policy 'p' belongs to the file base.yaml" in result.stderr
    document_ = json.loads(agentctl("diff", "policy", "p", str(path), "-o", "json").stdout)
    assert "engines" not in document_


def _facts(**fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "vllm_version": "0.32.0",
        "kv_engine_id": "uuid",
        "compatibility_hash": "aaa",
        "compatibility_factors": {"block_size": "16", "kv_cache_dtype": "auto"},
        **fields,
    }


@pytest.fixture
def two(harness: AdminHarness) -> AdminHarness:
    """Return two engines; the second has another vLLM version, another cache and a hook less."""
    for key, facts, installed in (
        ("0", _facts(), True),
        (
            "1",
            _facts(
                kv_engine_id="another",
                vllm_version="0.33.0",
                compatibility_hash="bbb",
                compatibility_factors={"block_size": "16", "kv_cache_dtype": "fp8"},
            ),
            False,
        ),
    ):
        core = harness.source(key, labels={"role": "decode", "tier": f"t{key}", "POD_NAME": f"pod-{key}"})
        harness.snapshot(
            core,
            Snapshot(
                time_unix_nano=time.time_ns(),
                engine=facts,
                hooks=[
                    {"name": "eplb", "installed": installed, "reason": "" if installed else "no such method"},
                    {
                        "name": "nixl",
                        "installed": True,
                        "missing_parts": [
                            {"name": "waiting", "lost": "time in the queue"},
                            *([{"name": "lease_expiry", "lost": "why a lease ended"}] if installed else ()),
                        ],
                    },
                ],
            ),
        )
        harness.engine(key, tier=f"t{key}")
    return harness


def test_two_engines_of_a_pod(two: AdminHarness, agentctl: Agentctl) -> None:
    """The diff has versions, labels, compatibility factors, hooks and policies, not ids and places."""
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "recompute", "-l", "tier=t1", "--wait")
    lines = agentctl("diff", "engine", "0", "1").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert rows["vllmVersion"] == ["0.32.0", "0.33.0"]
    assert rows["labels.tier"] == ["t0", "t1"]
    assert rows["compatibility.hash"] == ["aaa", "bbb"]
    assert rows["compatibility.factors.kv_cache_dtype"] == ["auto", "fp8"]
    assert rows["hooks.eplb"] == ["installed", "not", "installed:", "no", "such", "method"]
    assert " ".join(rows["missingParts.nixl.lease_expiry"]) == "without: why a lease ended -"
    assert not {"hooks.nixl", "missingParts.nixl.waiting"} & rows.keys()
    assert rows["policy.kvLoadFailure.action"] == ["-", "recompute", "(p)"]
    assert not {"kvEngineId", "labels.POD_NAME"} & rows.keys()
    assert lines[-1] == "handshakes between them fail as incompatible: kv_cache_dtype"
    alike = agentctl("diff", "engine", "0", "0")
    assert (alike.exit_code, alike.stdout) == (0, "engines 0 and 0 do not differ\n")
    assert agentctl("diff", "engine", "0", "1").exit_code == 1
    # More than 1 is an error.
    assert agentctl("diff", "engine", "0", "9").exit_code == 2
    assert agentctl("diff", "engine", "0", "1", "--address", "/nowhere").exit_code == 2


def test_what_a_pause_holds_back_is_not_in_common(two: AdminHarness, agentctl: Agentctl) -> None:
    """Two engines with the same wanted policy differ while one is paused."""
    agentctl("set-policy", "p", "-l", "role=decode", "--kv-load-failure", "recompute", "--wait")
    agentctl("pause", "0")
    lines = agentctl("diff", "engine", "0", "1").stdout.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:-1]}
    assert rows["policy.kvLoadFailure.action"] == "paused (would be recompute (p)) recompute (p)"
    assert rows["policy.inSync"] == "false true"


def test_an_engine_of_another_pod(two: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """The output of ``describe engine`` from another pod is an operand."""
    path = tmp_path / "other.json"
    path.write_text(agentctl("describe", "engine", "1", "-o", "json").stdout)
    assert "0.33.0" in agentctl("diff", "engine", "0", "-f", str(path)).stdout
    assert "0.33.0" in agentctl("diff", "engine", "0", "-f", "-", stdin=path.read_text()).stdout
    earlier = json.loads(path.read_text())
    for hook in earlier["sources"][0]["hooks"]:
        del hook["missingParts"]
    path.write_text(json.dumps(earlier))
    assert "without: time in the queue" in agentctl("diff", "engine", "0", "-f", str(path)).stdout
    for text, words in (
        ("{}", "is not an engine document"),
        ("[", "is not JSON"),
        ("[" * 10**5, "is not JSON"),
    ):
        path.write_text(text)
        result = agentctl("diff", "engine", "0", "-f", str(path))
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert agentctl("diff", "engine", "0").exit_code == 2
    assert agentctl("diff", "engine", "0", "-f", "/nowhere").exit_code == 2
