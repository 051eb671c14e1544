"""agentctl on policies, against the real admin service."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from penstock.agent.model import EngineKey
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_SET = ("set-policy", "p", "--all", "--kv-load-failure")


def _spec(harness: AdminHarness) -> dict[str, Any]:
    spec: dict[str, Any] = harness.store.policies()[0].manifest.document()["spec"]
    return spec


def test_set_policy_creates_and_waits_until_it_is_in_force(harness: AdminHarness, agentctl: Agentctl) -> None:
    """``--wait`` prints each engine's acknowledgement and exits with 0."""
    harness.engine("0")
    result = agentctl(*_SET, "recompute", "--selector", "role=decode", "--reason", "INC-42", "--wait")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "policy p created, generation 1"
    assert lines[-1].startswith("engine 0 acknowledged after ")
    stored = harness.store.policies()[0]
    assert lines[-1].endswith(f"in force: p (generation 1, by {stored.author})")
    assert stored.manifest.reason == "INC-42"
    assert "@" in stored.author


def test_a_wait_is_also_for_engines_that_a_policy_has_let_go(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """A narrower selector is in force once the engines outside it have dropped the policy."""
    harness.engine("0", tier="gold")
    harness.engine("1", tier="silver")
    assert agentctl(*_SET, "recompute", "-l", "role=decode", "--wait").exit_code == 0
    narrowed = agentctl(*_SET, "recompute", "-l", "tier=gold", "--wait")
    assert narrowed.exit_code == 0, narrowed.stderr
    last = {line.split()[1]: line for line in narrowed.stdout.splitlines()[1:]}
    assert sorted(last) == ["0", "1"]
    assert last["1"].endswith("in force: vllm's own")


def test_a_refusal_is_shown_and_exits_1(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The output has the engine's error."""
    harness.engine("0")
    harness.engine("1", refuse=lambda push: "cannot do that" if push.schedule else "")
    result = agentctl(*_SET, "recompute", "--wait")
    assert result.exit_code == 1
    assert "engine 1 refused: kvLoadFailure.action: cannot do that" in result.stdout
    assert result.stderr == (
        "agentctl: policy p is not in force in 1 of 2 engines: 1 refused it (kvLoadFailure.action: cannot do that)\n"
    )


def test_what_an_engine_refuses_does_not_read_as_if_it_were_in_force(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """The description has the wanted policy and the whole refusal."""
    why = f"{'x' * 150}; remove it for this engine"
    harness.snapshot(harness.source("0"), Snapshot(policy={"connected": True}))
    harness.engine("0", refuse=lambda push: why if push.schedule else "")
    agentctl(*_SET, "auto", "--wait")
    lines = [line.strip() for line in agentctl("describe", "engine", "0").stdout.splitlines()]
    assert "In force: vllm's own" in lines
    author = harness.store.policies()[0].author
    assert f"wanted: kvLoadFailure.action = auto, by policy p (generation 1, by {author})" in lines
    assert f"Last error: kvLoadFailure.action: {why}" in lines


def test_an_engine_that_does_not_answer_is_named_at_the_deadline(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """The timeout exits with 1 and names the engine; the policy stays set."""
    harness.source("3")
    result = agentctl(*_SET, "recompute", "--wait", "--timeout", "200ms")
    assert result.exit_code == 1
    assert "engine 3 waiting: not subscribed to policies" in result.stdout
    assert result.stderr.endswith(
        "policy p is not in force in 1 of 1 engine: 3 is still waiting (not subscribed to policies)\n"
    )
    assert _spec(harness)["kvLoadFailure"] == action("recompute")


def test_set_policy_changes_only_what_it_names(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Other fields are unchanged; the old reason is dropped."""
    agentctl(*_SET, "recompute", "-l", "role=decode,tier in (a,b)", "--model", "llama-*", "--reason", "first")
    result = agentctl(*_SET, "fail", "--priority", "200", "--mode", "observe")
    assert (result.exit_code, result.stdout) == (0, "policy p changed, generation 2\n")
    assert _spec(harness) == {
        "selector": {
            "matchLabels": {"role": "decode"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
            "models": ["llama-*"],
        },
        "kvLoadFailure": action("fail"),
        "priority": 200,
        "mode": "observe",
    }
    assert harness.store.policies()[0].manifest.reason == ""
    agentctl("set-policy", "p", "-l", "role=prefill")
    assert _spec(harness)["selector"] == {"matchLabels": {"role": "prefill"}, "models": ["llama-*"]}


def test_a_reason_is_of_its_change_only(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The next change drops the reason from the manifest."""
    agentctl(*_SET, "recompute", "--reason", "INC-42")
    agentctl(*_SET, "auto")
    assert harness.store.policies()[0].manifest.document()["metadata"] == {"name": "p"}


def test_ttl_is_written_as_a_moment_by_the_agents_clock(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Break-glass needs an expiry of at most four hours."""
    assert agentctl(*_SET, "recompute", "--priority", "950", "--ttl", "30m").exit_code == 0
    assert _spec(harness)["expiresAt"].endswith("Z")
    result = agentctl(*_SET, "recompute", "--priority", "950", "--ttl", "5h")
    assert result.exit_code == 2
    assert "may last at most 4h" in result.stderr
    result = agentctl("set-policy", "q", "--all", "--kv-load-failure", "recompute", "--priority", "950")
    assert result.exit_code == 2
    assert "spec.priority is 950, which is break-glass" in result.stderr


def test_a_dry_run_shows_fields_and_changes_nothing(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The fields are listed by engine; without a change a sentence says so."""
    harness.engine("0")
    result = agentctl(*_SET, "recompute", "--dry-run", "--wait")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "policy p created, generation 1 (dry run: nothing was changed)",
        "ENGINE   FIELD                  FROM         TO",
        "0        kvLoadFailure.action   vllm's own   recompute (p)",
    ]
    assert harness.store.policies() == ()
    nothing = agentctl(*_SET, "recompute", "-l", "role=none", "--dry-run")
    assert nothing.stdout.endswith("no known engine would change\n")
    assert nothing.stderr == "warning: policy p selects no known engine; it applies when one connects\n"


def test_what_get_prints_is_what_apply_takes(harness: AdminHarness, agentctl: Agentctl) -> None:
    """YAML and JSON, one policy and several; apply ignores the status."""
    for name in ("p", "q"):
        agentctl("set-policy", name, "--all", "--kv-load-failure", "recompute", "--ttl", "1h")
    before = [policy.manifest for policy in harness.store.policies()]
    for arguments in (("-o", "yaml"), ("-o", "json"), ("p", "-o", "yaml"), ("p", "-o", "json")):
        printed = agentctl("get", "policy", *arguments).stdout
        for name in ("p", "q"):
            agentctl("delete", "policy", name)
        result = agentctl("apply", "-f", "-", "--all", stdin=printed)
        assert result.exit_code == 0, result.stderr
        agentctl("rollback", "q")
        assert [policy.manifest for policy in harness.store.policies()] == before
    status = yaml.safe_load(agentctl("get", "policy", "p", "-o", "yaml").stdout)["status"]
    assert (status["owner"], status["enginesSelected"]) == ("imperative", 0)


def test_a_wrong_manifest_is_one_sentence(agentctl: Agentctl) -> None:
    """The error has field, value and advice; exit code 2."""
    result = agentctl("apply", "-f", "-", stdin=yaml.safe_dump(document(kvLoadFailure=action("recmpute"))))
    assert (result.exit_code, result.stderr) == (
        2,
        "agentctl: <stdin>: spec.kvLoadFailure.action is 'recmpute'; use one of recompute, fail, auto\n",
    )
    result = agentctl("apply", "-f", "-", stdin=yaml.safe_dump(document(kvLoadfailure={})))
    assert (result.exit_code, result.stderr) == (
        2,
        "agentctl: <stdin>: spec.kvLoadfailure is not a field; did you mean kvLoadFailure?\n",
    )
    assert agentctl("set-policy", "Bad_Name", "--kv-load-failure", "fail").exit_code == 2


def test_a_time_without_quotes_is_taken_as_it_is_written(harness: AdminHarness, agentctl: Agentctl) -> None:
    """YAML timestamps keep their spelling."""
    text = yaml.safe_dump(document(expiresAt="@")).replace("'@'", "2999-01-01T00:00:00Z")
    assert agentctl("apply", "-f", "-", "--all", stdin=text).exit_code == 0
    assert _spec(harness)["expiresAt"] == "2999-01-01T00:00:00Z"


def test_rollback_and_delete_wait_for_the_engines_they_touch(
    harness: AdminHarness, agentctl: Agentctl
) -> None:
    """The audit log has both; an unknown policy exits with 1."""
    harness.engine("0")
    agentctl(*_SET, "recompute")
    agentctl(*_SET, "auto")
    rolled = agentctl("rollback", "p", "--reason", "worse", "--wait")
    assert rolled.exit_code == 0, rolled.stderr
    assert rolled.stdout.startswith("policy p changed, generation 3\n")
    deleted = agentctl("delete", "policy", "p", "--wait")
    assert deleted.stdout.splitlines()[-1].endswith("in force: vllm's own")
    again = agentctl("delete", "policy", "p")
    assert (again.exit_code, again.stderr) == (
        1,
        "agentctl: policy 'p' does not exist; 'agentctl get policy' lists policies\n",
    )
    lines = agentctl("get", "audit", "p").stdout.splitlines()
    assert lines[0].split() == ["AGE", "AUTHOR", "ACTION", "NAME", "GENERATION", "REASON"]
    assert [line.split()[2] for line in lines[1:]] == ["delete", "rollback", "apply", "apply"]
    assert "worse" in lines[2]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_change_can_be_read_by_a_program(harness: AdminHarness, agentctl: Agentctl, output: str) -> None:
    """``-o json`` has change and rollout in one document, after a refusal too."""
    harness.engine("0", refuse=lambda push: "no" if push.schedule else "")
    alone = yaml.safe_load(agentctl(*_SET, "auto", "-o", output).stdout)
    assert (alone["result"], alone["generation"]) == ("created", 1)
    result = agentctl(*_SET, "recompute", "--wait", "-o", output)
    assert result.exit_code == 1
    both = json.loads(result.stdout) if output == "json" else yaml.safe_load(result.stdout)
    assert both["change"]["generation"] == 2
    assert both["rollout"]["engines"][0]["state"] == "refused"


def test_the_table_of_policies_and_the_effective_policy(harness: AdminHarness, agentctl: Agentctl) -> None:
    """The table has selector, fields and expiry; --effective the merge in one engine."""
    assert "no policies; vLLM's own configuration is in force" in agentctl("get", "policies").stderr
    harness.engine("0")
    agentctl(*_SET, "recompute", "-l", "role=decode", "--wait")
    agentctl(
        "set-policy", "q", "--all", "--kv-load-failure", "auto", "--priority", "200", "--ttl", "1h", "--wait"
    )
    lines = agentctl("get", "policy", "-o", "wide").stdout.splitlines()
    assert lines[0].split() == [
        "NAME", "PRIORITY", "MODE", "SELECTOR", "SETS", "IN-FORCE", "EXPIRES", "AGE",
        "GENERATION", "AUTHOR", "OWNER", "REASON",
    ]  # fmt: skip
    assert lines[1].split()[:7] == [
        "p",
        "100",
        "enforce",
        "role=decode",
        "kvLoadFailure.action=recompute",
        "0/1",  # q gives the field
        "never",
    ]
    assert lines[2].split()[:6] == ["q", "200", "enforce", "all", "kvLoadFailure.action=auto", "1/1"]
    effective = agentctl("get", "policy", "--effective", "0").stdout.splitlines()
    assert [line.split() for line in effective[:2]] == [
        ["FIELD", "VALUE", "POLICY"],
        ["kvLoadFailure.action", "auto", "q/1"],
    ]
    assert effective[2].startswith("in ")
    assert '"action": "recompute"' in effective[2]
    assert agentctl("get", "policy", "--effective", "9").exit_code == 1


def test_pause_and_resume(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Engines acknowledge both; an unknown engine is an error."""
    harness.engine("0")
    paused = agentctl("pause", "0", "--reason", "incident")
    assert paused.exit_code == 0, paused.stderr
    *_, acknowledged, end = paused.stdout.splitlines()
    assert acknowledged.startswith("engine 0 acknowledged after ")
    assert acknowledged.endswith(", paused")
    assert end == "the pause lasts until 'agentctl resume'"
    assert harness.pauses.is_paused(EngineKey("", "0"))
    resumed = agentctl("resume", "-o", "json")
    assert json.loads(resumed.stdout)["done"] is True
    assert not harness.pauses.is_paused(EngineKey("", "0"))
    missing = agentctl("pause", "-l", "role=none")
    assert (missing.exit_code, missing.stderr) == (
        1,
        "agentctl: no engine matches the selector; 'agentctl get engines -o wide' shows labels\n",
    )


def test_a_pause_for_a_time(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Command, list, description and doctor have the end; the last two also author and reason."""
    harness.source("0")
    harness.engine("0")
    paused = agentctl("pause", "0", "--ttl", "30m", "--reason", "INC-1")
    assert paused.exit_code == 0, paused.stderr
    assert re.fullmatch(
        r"the pause ends in (29|30)m, or with 'agentctl resume'", paused.stdout.splitlines()[-1]
    )
    assert re.search(r" paused, ends in (29|30)m ", agentctl("get", "engines").stdout)
    for command in (("describe", "engine", "0"), ("doctor",)):
        assert re.search(r"s ago by \S+@\S+, ends in (29|30)m: INC-1", agentctl(*command).stdout)
    too_long = agentctl("pause", "--ttl", "2d")
    assert too_long.exit_code
    assert "the ttl of a pause is" in too_long.stderr


def test_a_pause_with_a_refused_policy(agentctl: Agentctl, harness: AdminHarness) -> None:
    """The engine is paused: exit code 0, and the line has the refusal."""
    harness.engine("0", refuse=lambda push: "cannot do that" if push.schedule else "")
    agentctl("set-policy", "p", "--kv-load-failure", "fail", "-l", "role=decode")
    paused = agentctl("pause")
    assert paused.exit_code == 0, paused.stderr
    assert paused.stdout.splitlines()[-2].endswith(
        ", paused (its policy is refused: kvLoadFailure.action: cannot do that)"
    )
    resumed = agentctl("resume")
    assert (
        resumed.exit_code,
        resumed.stderr.startswith("agentctl: the end of the pause is not in force"),
    ) == (
        1,
        True,
    )


def test_a_share_of_the_engines_is_said_in_words(harness: AdminHarness, agentctl: Agentctl) -> None:
    """By the dry run, the change, the table, the description and the comparison; the others do not have the policy."""
    for number in range(8):
        harness.source(str(number), labels={"role": "decode", "POD_NAME": f"decode-{number}"})
        harness.engine(str(number), POD_NAME=f"decode-{number}")
    part = (*_SET, "recompute", "--rollout-percent", "40")
    dry = agentctl(*part, "--dry-run")
    selected = [line.split()[0] for line in dry.stdout.splitlines() if "kvLoadFailure.action" in line]
    assert 0 < len(selected) < 8
    share = f"policy p: 40 % of the engines: {len(selected)} of 8 here"
    assert share in dry.stdout.splitlines()
    assert agentctl(*part, "--wait").stdout.splitlines()[1] == share
    assert f"{len(selected)}/{len(selected)} (40 % of 8)" in agentctl("get", "policy").stdout
    lines = agentctl("describe", "policy", "p").stdout.splitlines()
    assert f"Rollout: 40 % of the engines: {len(selected)} of 8 here" in lines
    assert sum("without it: the rollout leaves it out" in line for line in lines) == 8 - len(selected)
    for number in range(8):
        wanted = harness.feed.wanted(EngineKey("", str(number)))
        assert bool(wanted) == (str(number) in selected)
    agentctl(*_SET, "recompute", "--rollout-percent", "41")
    assert "rollout.percent" in agentctl("diff", "policy", "p").stdout
    assert agentctl(*_SET, "recompute", "--unset", "rollout").exit_code == 0
    assert "rollout" not in _spec(harness)
    assert agentctl(*_SET, "recompute", "--rollout-percent", "101").exit_code == 2
