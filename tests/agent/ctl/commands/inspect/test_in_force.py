"""A policy is in force only once the engine reports it: output for paused and contested engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from penstock.agent.model import EngineKey
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_SET = ("set-policy", "p", "-l", "role=decode", "--kv-load-failure")


def _engine(harness: AdminHarness, engine: str = "0") -> None:
    """Connect an engine whose snapshot has vLLM's own kv_load_failure_policy."""
    harness.snapshot(harness.source(engine), Snapshot(engine={"model": "tiny"}, policy={"kv_action": "fail"}))
    harness.engine(engine)


def _hash(harness: AdminHarness) -> str:
    return str(harness.feed.wanted(EngineKey("", "0")))


def _wanted(harness: AdminHarness) -> str:
    """Return the policies of the store in the words of a rollout."""
    return ", ".join(
        f"{item.manifest.name} (generation {item.generation}, by {item.author})"
        for item in harness.store.policies()
    )


def test_a_wait_for_a_paused_engine_fails_with_a_sentence(harness: AdminHarness, agentctl: Agentctl) -> None:
    """``--wait`` exits with 1 for a paused engine, and names 'agentctl resume'."""
    _engine(harness)
    agentctl("pause")
    result = agentctl(*_SET, "recompute", "--wait")
    assert result.exit_code == 1
    wanted = _wanted(harness)
    assert f"engine 0 paused (would be {wanted})\n" in result.stdout
    assert result.stderr == (
        "warning: engine 0 is paused: not in force there until 'agentctl resume'\n"
        f"agentctl: policy p is not in force in 1 of 1 engine: 0 is paused (would be {wanted}); "
        "'agentctl resume' ends a pause\n"
    )
    document = json.loads(agentctl(*_SET, "auto", "--wait", "-o", "json").stdout)
    (engine,) = document["rollout"]["engines"]
    assert (engine["state"], engine["hash"], engine["wantedHash"]) == ("paused", "", _hash(harness))
    assert [(item["name"], item["generation"]) for item in engine["wantedPolicies"]] == [("p", 2)]


@pytest.mark.parametrize("command", ["apply", "import", "rollback", "delete"])
def test_no_change_is_in_force_in_a_paused_engine(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path, command: str
) -> None:
    """For every command that changes a policy."""
    _engine(harness)
    agentctl("set-policy", "base", "-l", "role=decode", "--ec-load-failure", "recompute")
    agentctl(*_SET, "recompute")
    agentctl(*_SET, "fail")
    agentctl("pause")
    path = tmp_path / "p.yaml"
    selector = {"matchLabels": {"role": "decode"}}
    path.write_text(yaml.safe_dump(document("p", selector=selector, kvLoadFailure=action("auto"))))
    arguments = {
        "apply": ("apply", "-f", str(path)),
        "import": ("import", "-f", str(path)),
        "rollback": ("rollback", "p"),
        "delete": ("delete", "policy", "p"),
    }[command]
    result = agentctl(*arguments, "--wait")
    assert result.exit_code == 1
    assert f"0 is paused (would be {_wanted(harness)})" in result.stderr
    assert "in force: " not in result.stdout


def test_nothing_is_held_back_where_nothing_is_wanted(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Deleting the last policy succeeds in a paused engine: vLLM's own configuration is in force."""
    _engine(harness)
    agentctl(*_SET, "recompute")
    agentctl("pause")
    result = agentctl("delete", "policy", "p", "--wait")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1].endswith("in force: vllm's own")


def test_what_a_paused_engine_would_do_is_shown_as_such(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Lists and descriptions mark the policy of a paused engine; after resume it is in force."""
    _engine(harness)
    agentctl(*_SET, "recompute", "--wait")
    agentctl("pause")
    wanted = _wanted(harness)
    (engine,) = json.loads(agentctl("get", "engines", "-o", "json").stdout)["engines"]
    assert (engine["inSync"], engine["policy"]["hash"], engine["wantedKvAction"]) == (False, "", "recompute")
    header, row = agentctl("get", "engines").stdout.splitlines()
    assert row[header.index("KV-ACTION") :].startswith("paused (would be recompute) ")
    assert row[header.index("POLICY") :].startswith("paused (would be p/1) ")
    assert row[header.index("IN-SYNC") :].startswith("no ")
    assert " 0/1 (1 paused) " in agentctl("get", "policy").stdout
    lines = [line.strip() for line in agentctl("describe", "engine", "0").stdout.splitlines()]
    assert f"In force: vllm's own, paused (would be {wanted}, hash {_hash(harness)})" in lines
    assert "In sync: no" in lines
    assert "On a failed KV load: fail, paused (would be recompute)" in lines
    assert f"paused (would be kvLoadFailure.action = recompute, by policy {wanted})" in lines
    effective = agentctl("get", "policy", "--effective", "0")
    assert "engine 0 is paused" in effective.stderr
    doctor = agentctl("doctor").stdout
    assert "paused: vLLM's own configuration, no telemetry" in doctor
    assert f"(its policy would be {wanted})" in doctor
    assert "policy in force" not in doctor
    agentctl("resume")
    header, row = agentctl("get", "engines").stdout.splitlines()
    assert row[header.index("IN-SYNC") :].startswith("yes ")
    assert "1/1" in agentctl("get", "policy").stdout.splitlines()[1].split()


def test_orders_are_held_back_as_well(harness: AdminHarness, agentctl: Agentctl) -> None:
    """A paused engine runs no quarantine and no drill."""
    harness.source("0")
    harness.engine("0", supported=("peer_quarantine",), faults_allowed=True)
    agentctl("pause")
    cut = agentctl("quarantine", "add", "10.0.0.7:5600")
    assert cut.exit_code == 1
    assert "engine 0 paused (would be quarantining 10.0.0.7:5600)" in cut.stdout
    assert "ordered, not in force" in agentctl("quarantine", "list").stdout
    drill = agentctl("inject-fault", "--mode", "transfer", "--all")
    assert drill.exit_code == 1
    assert "engine 0 paused (would be running the drill)" in drill.stdout
    assert "0 paused" in agentctl("drill", "list").stdout
    stopped = agentctl("drill", "stop", "--all")
    assert stopped.exit_code == 0, stopped.stderr


@pytest.mark.parametrize("connected", [False, True])
def test_a_wait_that_no_connected_engine_ends_fails(
    harness: AdminHarness, agentctl: Agentctl, connected: bool
) -> None:
    """``--wait`` without a matching connected engine exits with 1, but for --allow-none."""
    _engine(harness)
    if not connected:
        harness.hang_up(harness.engine("7", tier="gone"))
    where = "role=decod" if connected else "tier=gone"
    arguments = ("set-policy", "p", "-l", where, "--kv-load-failure", "recompute", "--wait")
    result = agentctl(*arguments)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"agentctl: policy p is in force nowhere: no connected engine matches {where}; "
        "'agentctl get engines -o wide' shows labels; --allow-none allows this"
    )
    assert agentctl(*arguments, "--allow-none").exit_code == 0


def test_an_import_names_the_policies_that_no_connected_engine_has(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """Each policy of an import needs its own matching engine."""
    _engine(harness)
    good = document("good", selector={"matchLabels": {"role": "decode"}})
    typo = document("typo", selector={"matchLabels": {"role": "decod"}})
    text = yaml.safe_dump_all([good, typo])
    result = agentctl("import", "-f", "-", "--wait", stdin=text)
    assert result.exit_code == 1
    assert "policy typo is in force nowhere: no connected engine matches role=decod" in result.stderr
    assert "policy good" not in result.stderr
    again = agentctl("import", "-f", "-", "--wait", stdin=text)
    assert again.exit_code == 1
    assert agentctl("import", "-f", "-", "--wait", "--allow-none", stdin=text).exit_code == 0


def test_a_rollback_waits_for_the_engines_of_what_it_brings_back(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """``--wait`` covers the restored selector, also if no engine changes or is connected."""
    _engine(harness)
    agentctl("set-policy", "p", "-l", "role=decod", "--kv-load-failure", "recompute")
    agentctl("set-policy", "p", "--kv-load-failure", "auto")
    result = agentctl("rollback", "p", "--wait")
    assert result.exit_code == 1
    assert "no connected engine matches role=decod" in result.stderr


@pytest.mark.parametrize("fields", [("--kv-load-failure", "recompute"), ("--trace-sample-ratio", "0.5")])
def test_an_empty_selector_asks_for_all(
    harness: AdminHarness, agentctl: Agentctl, fields: tuple[str, str]
) -> None:
    """An empty selector needs ``--all`` in every command; nothing is changed without it."""
    refused = agentctl("set-policy", "p", *fields)
    assert refused.exit_code == 2
    assert refused.stderr == (
        "agentctl: spec.selector is empty: the policy would apply to every engine, including later ones; "
        "give a selector (--selector, --model), or confirm with --all\n"
    )
    text = yaml.safe_dump(document("p", selector={}))
    for command in ("apply", "import"):
        assert agentctl(command, "-f", "-", stdin=text).exit_code == 2
    assert harness.store.policies() == ()
    assert agentctl("set-policy", "p", *fields, "--all").exit_code == 0


def test_two_servers_under_one_name_are_never_in_force(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Two servers of one name are contested in every view, until one disconnects."""
    _engine(harness)
    twin = harness.source("0", epoch=99, pid=43)
    result = agentctl(*_SET, "recompute", "--wait")
    assert result.exit_code == 1
    assert "engine 0 contested: 2 EngineCores share this name" in result.stdout
    assert "0 is contested (2 EngineCores share this name" in result.stderr
    assert "PENSTOCK_SERVER" in result.stderr
    header, row = agentctl("get", "engines").stdout.splitlines()
    assert row[header.index("STATUS") :].startswith("2 share a name ")
    assert row[header.index("IN-SYNC") :].startswith("no ")
    assert "Status: 2 share a name" in agentctl("describe", "engine", "0").stdout
    assert "0/1" in agentctl("get", "policy").stdout.splitlines()[1].split()
    assert "2 EngineCores share this name (pid 42, 43)" in agentctl("doctor").stdout
    harness.disconnect(twin)
    assert agentctl(*_SET, "auto", "--wait").exit_code == 0
