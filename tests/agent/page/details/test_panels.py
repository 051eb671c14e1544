"""The panels of a peer, an engine and a condition, of a real agent with a fleet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.page.details.condition import find_cause
from penstock.agent.page.wire import plain
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.page.addresses import page_of
from tests.support.page.sample_fleet import PEERS, sample_fleet
from tests.support.page.tab import MAX_BYTES, ask

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent with a fleet, of which the diagnosis has a cause."""
    with running_agent(["--page=127.0.0.1:0"]) as running, sample_fleet(running):
        wait_until(lambda: _diagnosed(running)["causes"], "the diagnosis has a cause")
        yield running


def _diagnosed(agent: AgentProcess) -> Any:
    return json.loads(
        CliRunner(env={"AGENTCTL_ADDRESS": agent.admin}).invoke(cli, ["diagnose", "-o", "json"]).output
    )


def _asked(agent: AgentProcess, what: str, /, **query: str) -> Any:
    answer = ask(page_of(agent), f"/api/{what}", **query)
    assert answer.status == 200, answer.body
    assert len(json.dumps(answer.body)) <= MAX_BYTES
    return answer.body


def _cells(section: Any) -> list[list[str]]:
    return [row["cells"] for row in section["rows"]]


def test_a_peer_has_one_panel(agent: AgentProcess) -> None:
    """What is wrong since when, its minutes, who has it, what failed by kind, the policy; the rest is folded."""
    found = _asked(agent, "peer", engine="decode/0", peer=PEERS[0])
    assert found["sentences"][0].startswith("It is hanging for engine decode/0 since ")
    assert "All 3 engines that have it are in trouble with it" in found["sentences"]
    minutes, readers, failed, policy, *folded = found["sections"]
    assert (minutes["kind"], minutes["engine"], minutes["peer"]) == ("minutes", "decode/0", PEERS[0])
    assert {cells[0] for cells in _cells(readers)} == {"decode/0", "decode/1", "decode/2"}
    assert all(cells[1] == "hanging" and cells[3] == "kv in 20 ok" for cells in _cells(readers))
    assert readers["rows"][0]["link"]["kind"] == "peer"
    ((mode, error, quarter, hour, in_all, last),) = _cells(failed)
    assert (mode, error) == ("handshake", "refused")
    assert quarter == hour == in_all
    assert last.endswith("ago")
    assert ["kvLoadFailure.action", "recompute"] in [cells[:2] for cells in _cells(policy)]
    assert policy["rows"][0]["link"] == {
        "kind": "policy",
        "engine": "",
        "peer": "",
        "id": "",
        "name": "decode-default",
    }
    assert [each["folded"] for each in folded] == [True, True]
    assert "cmpl-0" not in json.dumps(found)
    well = _asked(agent, "peer", peer=PEERS[3])
    assert well["sentences"][0] == "Nothing is wrong with it for engine decode/0"
    assert well["sections"][0]["engine"] == ""


def test_an_engine_has_one_panel(agent: AgentProcess) -> None:
    """Who decodes has a time to first token, who prefills has loads; both have a queue."""
    decode, prefill = (_asked(agent, "engine", key=f"{name}/0") for name in ("decode", "prefill"))
    assert decode["sentences"][0].startswith("It is connected")
    plots = [
        [each["plot"] for each in found["sections"] if each["kind"] == "plot"] for found in (decode, prefill)
    ]
    assert plots == [["ttft", "queue"], ["loads", "queue"]]
    _, _, peers, failed, policy, described = decode["sections"]
    assert _cells(peers)[0][:3] == [PEERS[0], "-", "hanging"]
    assert len(_cells(peers)) == len(PEERS)
    assert [cells[:2] for cells in _cells(failed)] == [["handshake", "refused"]]
    assert policy["rows"]
    assert described["folded"]
    assert "no policy selects it" in prefill["sections"][4]["sentence"]


def test_a_condition_is_what_the_diagnosis_says(agent: AgentProcess) -> None:
    """With since when, how sure it is, and the plot in which one sees it."""
    cause = _diagnosed(agent)["causes"][0]
    found = _asked(agent, "condition", kind=cause["kind"], peer=cause["peer"], engine="decode/1")
    assert found["title"] == f"Condition {cause['kind']}: {cause['peer']}"
    assert found["sentences"][0].partition(",")[0] == cause["sentence"].partition(",")[0]
    assert found["sentences"][1].startswith("Since ")
    assert found["sentences"][1].endswith(cause["confidence"])
    minutes, evidence, readers, policy, commands, alternatives, looked = found["sections"]
    assert (minutes["kind"], minutes["engine"], minutes["peer"]) == ("minutes", "", cause["peer"])
    assert "handshake/refused" in _cells(evidence)[0][0]
    assert len(readers["rows"]) == 3
    assert policy["title"] == "What the policy of decode/1 does about it"
    assert [row["command"] for row in commands["rows"]] == cause["commands"]
    assert alternatives["text"].splitlines() == cause["alternatives"]
    assert looked["folded"]


def test_a_condition_that_is_over_says_so(agent: AgentProcess) -> None:
    """With the verdict of now, and its plot still; names are shown as everywhere."""
    found = _asked(agent, "condition", kind="pinned_blocks", engine="decode/0")
    assert found["sentences"][0].startswith("This condition is over")
    assert found["sentences"][1].startswith(f"The verdict now: peer {PEERS[0]}")
    assert (found["sections"][0]["plot"], found["sections"][0]["engine"]) == ("held", "decode/0")
    hostile = "\u202e<b>"
    strange = json.dumps(
        _asked(agent, "condition", kind=hostile, peer=hostile, engine=hostile), ensure_ascii=False
    )
    assert "\u202e" not in strange
    assert ask(page_of(agent), "/api/condition").status == 400


def test_a_cause_is_found_by_the_names_that_the_page_shows() -> None:
    """Of an engine where it is about one; also among what another brings about, and by an escaped name."""

    def cause(kind: str, engine: str, peer: str = "", **more: Any) -> admin.DiagnosedCause:
        return admin.DiagnosedCause(kind=kind, engines=[{"server": engine, "engine": "0"}], peer=peer, **more)

    effect, strange = cause("engine_away", "b"), cause("peer_fails", "c\u202e", "h\u202e:1")
    causes = [cause("call_stuck", "a"), cause("call_stuck", "b", effects=[effect]), strange]
    found = admin.Diagnosis(causes=causes)
    assert find_cause(found, "call_stuck", "", "b/0") == causes[1]
    assert find_cause(found, "call_stuck", "", "c/0") is None
    assert find_cause(found, "call_stuck", "h:1", "b/0") is None
    assert find_cause(found, "engine_away", "", "b/0") == effect
    assert find_cause(found, "engine_away", "", "") == effect
    assert find_cause(found, "peer_fails", plain("h\u202e:1"), plain("c\u202e/0")) == strange
    assert find_cause(found, "peer_fails", "h\u202e:1", "gone/0") == strange
