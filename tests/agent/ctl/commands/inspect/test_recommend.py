"""agentctl recommend, against the real admin service, and on the films."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner
from penstock.agent.ctl.commands.inspect import recommend
from penstock.agent.ctl.main import cli
from penstock.agent.replay import MIN_LOADS
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import deferral_end
from tests.support.agent.stories import SECOND, outcome
from tests.support.incidents.films import RECORDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_LOADS = 40
_FAILED = _LOADS // 4
_NOTHING = "nothing is recommended: none is better than today's policies"


def _happened(harness: AdminHarness, loads: int, began: int) -> None:
    """One load a second, of which each fourth fails after a second, and the others wait for 10 ms."""
    core = harness.source("0")
    for number in range(loads):
        name, at = f"r-{began}-{number}", began + number * SECOND
        if number % 4:
            harness.append(core, deferral_end(name, start_ns=at, time_ns=at + SECOND // 100))
        else:
            harness.append(
                core,
                outcome(name, common.OUTCOME_FAILED, time_ns=at + SECOND, decided_by=common.DECIDED_BY_VLLM),
                deferral_end(name, start_ns=at, time_ns=at + SECOND),
            )


@pytest.fixture
def failing(harness: AdminHarness) -> AdminHarness:
    """Let an engine have 40 loads, ten minutes ago."""
    harness.engine("0", supported=("kv_load_failure", "deferral", "peer_quarantine"))
    _happened(harness, _LOADS, time.time_ns() - 600 * SECOND)
    return harness


def test_the_manifest_goes_to_apply_as_it_is(failing: AdminHarness, agentctl: Agentctl) -> None:
    """In mode observe, with the evidence as comments; the present policies stay, and it is not recommended over itself."""
    made = agentctl("recommend", "-o", "yaml")
    assert made.exit_code == 0, made.stderr
    manifest = yaml.safe_load(made.stdout)
    assert manifest["spec"] == {
        "selector": {"matchExpressions": [{"key": "role", "operator": "In", "values": ["decode"]}]},
        "priority": 100,
        "mode": "observe",
        "kvLoadFailure": {"action": "recompute"},
    }
    comments = [line for line in made.stdout.splitlines() if line.startswith("#")]
    assert comments[0] == "# recommended: kvLoadFailure {action: recompute}"
    assert any(f"{_LOADS} remote loads of {_LOADS} requests" in line for line in comments)
    assert "# Not known:" in comments
    applied = agentctl("apply", "-f", "-", stdin=made.stdout)
    assert (applied.exit_code, applied.stdout) == (0, "policy recommended created, generation 1\n")
    assert yaml.safe_load(agentctl("recommend", "-o", "yaml").stdout) == manifest


def test_the_table_has_each_candidate_beside_today(failing: AdminHarness, agentctl: Agentctl) -> None:
    """Failed, waited and tokens first; the recommended one is marked."""
    lines = agentctl("recommend").stdout.splitlines()
    column = next(line for line in lines if line.startswith("FAILED")).index("POLICY")
    cells = {line[column:]: line.split()[:5] for line in lines}
    assert cells["recorded"] == cells["today's policies"] == ["10", "10.3s", "0", "30", "0"]
    assert cells["* kvLoadFailure {action: recompute}"] == ["0", "10.3s", "4000", "30", "10"]
    assert cells["kvLoadFailure {action: fail}"][0] == "10"
    assert f"- how much of this is chance: only {_FAILED} loads failed or were recomputed" in lines
    assert "apply -f -" in lines[-1]


def test_json_has_all(failing: AdminHarness, agentctl: Agentctl) -> None:
    """The manifest, what was replayed, and of when."""
    found = json.loads(agentctl("recommend", "-l", "role=decode", "-o", "json").stdout)
    assert found["manifest"]["spec"]["mode"] == "observe"
    assert (found["loads"], found["requests"], found["complete"]) == (_LOADS, _LOADS, True)
    assert found["from"] < found["to"]
    assert found["today"]["failed"] == _FAILED
    assert found["candidates"][0] == {
        "fields": {"kvLoadFailure.action": "recompute"},
        "replayed": {**found["today"], "failed": 0, "recomputed": _FAILED, "tokensRecomputed": 4000},
    }


def test_it_stands_above_the_policies_in_force(failing: AdminHarness, agentctl: Agentctl) -> None:
    """And it takes no name of theirs: what is enforced must not become observed."""
    policy = agentctl(
        "set-policy", "recommended", "--kv-load-failure", "fail", "--priority", "300", "-l", "role=decode"
    )
    assert policy.exit_code == 0, policy.output
    manifest = yaml.safe_load(agentctl("recommend", "-o", "yaml").stdout)
    assert (manifest["metadata"]["name"], manifest["spec"]["priority"]) == ("recommended-2", 301)


def test_nothing_is_better_than_what_is_there(failing: AdminHarness, agentctl: Agentctl) -> None:
    """It says so, and no manifest is printed."""
    assert agentctl("set-policy", "p", "--kv-load-failure", "recompute", "-l", "role=decode").exit_code == 0
    made = agentctl("recommend", "-o", "yaml")
    assert (made.exit_code, made.stdout) == (0, "")
    assert made.stderr.startswith(_NOTHING)
    assert agentctl("recommend").stdout.startswith(_NOTHING)
    found = json.loads(agentctl("recommend", "-o", "json").stdout)
    assert "manifest" not in found
    assert found["candidates"]


def test_too_few_loads(harness: AdminHarness, agentctl: Agentctl) -> None:
    """They are no evidence, however many of them have failed."""
    _happened(harness, MIN_LOADS - 1, time.time_ns() - 600 * SECOND)
    made = agentctl("recommend", "-o", "yaml")
    assert (made.exit_code, made.stdout) == (0, "")
    assert made.stderr == (
        "nothing is recommended: 29 remote loads recorded in the last 24h, at least 30 are needed\n"
    )
    empty = agentctl("recommend", "--since", "1s")
    assert "0 remote loads recorded in the last 1s" in empty.stdout
    assert "is not known" in empty.stdout


def test_a_gain_of_a_log_that_moves_is_asked_for_again(
    failing: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads come between two replays; the last word has a pair of replays one after the other."""
    real = recommend._Recommending._try

    def grows(self: Any, *arguments: Any) -> Any:
        _happened(failing, 1, time.time_ns() - 300 * SECOND)
        return real(self, *arguments)

    monkeypatch.setattr(recommend._Recommending, "_try", grows)
    made = agentctl("recommend", "-o", "yaml")
    assert yaml.safe_load(made.stdout)["spec"]["kvLoadFailure"] == {"action": "recompute"}
    assert "# - the exact gain: loads came during the search" in made.stdout
    monkeypatch.setattr(recommend._Recommending, "_holds", lambda *_: False)
    assert agentctl("recommend", "-o", "yaml").stdout == ""


def test_the_search_takes_a_bounded_time(
    failing: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not tried is not known; a long one tells how far it is."""
    monkeypatch.setattr(recommend, "_SEARCH_SECONDS", -1.0)
    found = json.loads(agentctl("recommend", "-o", "json").stdout)
    assert (found["complete"], found["candidates"]) == (False, [])
    assert any(each.startswith("what other candidates bring") for each in found["notKnown"])
    monkeypatch.undo()
    monkeypatch.setattr(recommend, "_PROGRESS_SECONDS", -1.0)
    assert "0 of at most 64 candidates replayed" in agentctl("recommend").stderr


@pytest.mark.parametrize(
    ("film", "fields"),
    [
        ("calm", {}),
        # One late load that succeeded is no reason for a deadline that may fail it.
        ("stale-reference", {}),
        ("network-flaps", {}),
        ("two-causes", {"kvLoadFailure": {"action": "recompute"}}),
        ("forgotten-quarantine", {"kvLoadFailure": {"action": "recompute"}}),
        (
            "pod-undrained",
            {
                "kvLoadFailure": {"action": "recompute"},
                "peerQuarantine": {"failures": 10, "window": "30s", "duration": "1m"},
            },
        ),
        (
            "policy-of-fail",
            {
                "kvLoadFailure": {"action": "recompute"},
                "deferral": {"maxStartWait": "3s500ms", "onTimeout": "recompute"},
            },
        ),
        ("stuck-load", {}),
    ],
)
def test_what_is_said_of_a_film(film: str, fields: dict[str, Any]) -> None:
    """Five minutes into the fault; where nothing fails, nothing is recommended."""
    bundle = str(RECORDED / film / "five.bundle")
    result = CliRunner().invoke(cli, ["--bundle", bundle, "recommend", "-o", "json"])
    assert result.exit_code == 0, result.output
    spec = json.loads(result.stdout).get("manifest", {}).get("spec", {})
    assert {
        name: value for name, value in spec.items() if isinstance(value, dict) and name != "selector"
    } == fields
