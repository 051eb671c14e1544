"""Details and writes of a real agent: what a click shows, what a write does, and who is said to have done it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.proto.v1.common_pb2 import DECIDED_BY_VLLM, OUTCOME_FAILED

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.batches import deferral_end, transfer_failure
from tests.support.agent.stories import SECOND, outcome
from tests.support.page.addresses import AUTHOR, bearer, page_of, token_of
from tests.support.page.sample_fleet import PEERS, manifest, sample_fleet
from tests.support.page.tab import MAX_BYTES, Answer, Tab, ask, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.ingest_client import FakeEngine

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'`$(id);&|",
    "\x1b[31mred\x07",
    "\u202egpj.exe",
    "-rf",
    "data: x\n\nevent: bye",
    "\u2028\u2029\0\x7f",
    "x" * 300,
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[AgentProcess, list[FakeEngine]]]:
    """Run an agent whose page writes, with a fleet."""
    with (
        running_agent(["--page=127.0.0.1:0", "--page-write=yes"]) as running,
        sample_fleet(running) as engines,
    ):
        yield running, engines


@pytest.fixture
def agent(fleet: tuple[AgentProcess, list[FakeEngine]]) -> AgentProcess:
    """Return the agent."""
    return fleet[0]


def _ctl(agent: AgentProcess, *words: str) -> str:
    return CliRunner(env={"AGENTCTL_ADDRESS": agent.admin}).invoke(cli, words).output


def _write(agent: AgentProcess, kind: str, body: object) -> Answer:
    """Write with a token."""
    return write(page_of(agent), kind, body, bearer(token_of(agent.admin)))


def _texts(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return json.dumps(answer.body, ensure_ascii=False)


def test_a_policy_is_tried_and_then_applied(agent: AgentProcess) -> None:
    """The generation of the dry run keeps what somebody else has changed meanwhile."""
    page = page_of(agent)
    body = {"name": "late", "manifest": manifest("late", "fail", 200), "reason": "a test", "generation": 0}
    tried = _write(agent, "policy", {**body, "dryRun": True})

    assert "created" in tried.body["sentence"]
    assert "would be" in tried.body["sentence"]
    rows = [row["cells"] for row in tried.body["sections"][0]["rows"]]
    assert ["decode/0", "kvLoadFailure.action", "recompute (decode-default)", "fail (late)"] in rows
    assert "late" not in _ctl(agent, "get", "policy", "-o", "name")
    done = _write(agent, "policy", {**body, "dryRun": False})
    assert done.status == 200
    again = _write(agent, "policy", {**body, "manifest": manifest("late", "recompute", 200), "dryRun": False})
    assert again.status == 409
    audit = json.loads(_ctl(agent, "get", "audit", "-o", "json"))["entries"]
    assert [(each["author"], each["reason"]) for each in audit if each["name"] == "late"] == [
        (f"{AUTHOR} (page)", "a test")
    ]
    shown = ask(page, "/api/policy", name="late").body
    assert shown["generation"] == 1
    assert "priority: 200" in shown["manifest"]


def test_a_dry_run_says_what_the_last_hour_would_have_been(
    fleet: tuple[AgentProcess, list[FakeEngine]],
) -> None:
    """By engine, against what is recorded; of engines without loads it says that it does not know."""
    agent, engines = fleet
    now = time.time_ns()
    engines[2].publish(
        *(
            each
            for name in ("a", "b", "c")
            for each in (
                outcome(name, OUTCOME_FAILED, time_ns=now, decided_by=DECIDED_BY_VLLM),
                deferral_end(name, start_ns=now - SECOND, time_ns=now),
            )
        )
    )
    body = {
        "name": "hour",
        "manifest": manifest("hour", "recompute", 300),
        "reason": "a test",
        "dryRun": True,
    }
    said = "Of the 3 remote loads of the last hour: failed 3 → 0, recomputed 0 → 3, waited 3.0s."
    wait_until(
        lambda: said in _write(agent, "policy", body).body["sentences"], "the loads are in the journal"
    )
    table = _write(agent, "policy", body).body["sections"][-1]
    assert table["title"] == "The last hour: recorded → with this policy"
    assert [row["cells"] for row in table["rows"]] == [["decode/2", "3", "3 → 0", "0 → 3", "3.0s"]]
    other = json.loads(body["manifest"])  # type: ignore[arg-type]
    other["spec"]["selector"] = {"matchLabels": {"role": "prefill"}}
    found = _write(agent, "policy", {**body, "manifest": json.dumps(other)}).body["sentences"]
    assert found[-1] == (
        "What it would have changed is not known: no remote load of its engines is recorded in the last hour."
    )


def test_a_form_changes_fields_of_a_manifest(agent: AgentProcess) -> None:
    """The dry run is of the manifest with the changes, a draft is its YAML, and an error has the sentence of a file's."""
    shown = ask(page_of(agent), "/api/policy", name="decode-default").body
    values = {each["path"]: each["value"] for each in shown["fields"]}
    assert (values["deferral.maxTransferWait"], values["kvLoadFailure.overBudget"]) == ("5s", "")
    body = {"name": "decode-default", "manifest": shown["manifest"], "generation": shown["generation"]}
    changes = {"peerQuarantine.failures": "7", "kvLoadFailure.action": ""}
    tried = _write(agent, "policy", {**body, "changes": changes, "reason": "a test", "dryRun": True})
    rows = [row["cells"] for row in tried.body["sections"][0]["rows"]]
    assert ["decode/0", "peerQuarantine.failures", "-", "7 (decode-default)"] in rows
    draft = _write(agent, "draft", {**body, "changes": changes}).body
    assert "failures: 7" in draft["manifest"]
    assert "kvLoadFailure" not in draft["manifest"]
    assert len(draft["fields"]) == len(shown["fields"])
    wrong = _write(agent, "policy", {**body, "changes": {"deferral.maxTransferWait": "2h"}, "dryRun": True})
    assert wrong.status == 400
    assert "spec.deferral.maxTransferWait is '2h'; use a duration from 1ms to 1h" in wrong.body["error"]
    assert ask(page_of(agent), "/api/policy", name="decode-default").body["generation"] == shown["generation"]


def test_the_last_change_of_a_policy_is_undone(agent: AgentProcess) -> None:
    """A change, a deletion, and that it was made at all: each time what was before is back, and the audit log has who did it."""

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = ask(page_of(agent), "/api/policy", name="undone").body
        return found

    def undo(*, dry_run: bool = False) -> Answer:
        generation = shown()["generation"]
        body = {"name": "undone", "generation": generation, "reason": "INC-9", "dryRun": dry_run}
        return _write(agent, "undo", body)

    for action, generation in (("recompute", 0), ("fail", 1)):
        body = {"name": "undone", "manifest": manifest("undone", action, 300), "generation": generation}
        assert _write(agent, "policy", {**body, "reason": "a test", "dryRun": False}).status == 200
    tried = undo(dry_run=True)
    assert tried.body["sentence"] == (
        f"apply by {AUTHOR} (page) would be undone: policy undone would be what it was as generation 1"
    )
    rows = [row["cells"] for row in tried.body["sections"][0]["rows"]]
    assert ["decode/0", "kvLoadFailure.action", "fail (undone)", "recompute (undone)"] in rows
    assert "action: fail" in shown()["manifest"]
    stale = _write(agent, "undo", {"name": "undone", "generation": 1, "reason": "late", "dryRun": False})
    assert (stale.status, stale.body["error"]) == (
        409,
        "policy 'undone' is at generation 2, not at 1; ask again",
    )
    assert undo().status == 200
    assert "action: recompute" in shown()["manifest"]
    changes = [row["cells"] for row in shown()["sections"][0]["rows"]]
    assert [cells[1:3] for cells in changes] == [
        [f"{AUTHOR} (page)", why] for why in ("INC-9", "a test", "a test")
    ]
    assert changes[1][4] == "kvLoadFailure.action: recompute → fail"

    _ctl(agent, "delete", "policy", "undone")
    assert shown()["sentences"][0].startswith("There is no policy undone any more: delete by ")
    assert undo().status == 200
    assert "action: recompute" in shown()["manifest"]
    assert _write(agent, "undo", {"name": "never", "generation": 0, "dryRun": True}).status == 404
    _ctl(agent, "delete", "policy", "undone")


def test_a_policy_that_was_just_made_is_undone_to_none(agent: AgentProcess) -> None:
    """The dry run says what its engines get instead."""
    body = {"name": "fresh", "manifest": manifest("fresh", "fail", 300), "generation": 0, "reason": "a test"}
    assert _write(agent, "policy", {**body, "dryRun": False}).status == 200
    undo = {"name": "fresh", "generation": 1, "reason": "INC-9"}
    tried = _write(agent, "undo", {**undo, "dryRun": True}).body
    assert (
        f"apply by {AUTHOR} (page) would be undone: there would be no policy fresh, as before"
        in tried["sentence"]
    )
    assert tried["command"] == "agentctl delete policy fresh --dry-run"
    rows = [row["cells"] for row in tried["sections"][0]["rows"]]
    (before,) = (cells[2:] for cells in rows if cells[:2] == ["decode/0", "kvLoadFailure.action"])
    assert before[0] == "fail (fresh)"
    assert before[1] not in {"-", before[0]}
    assert _write(agent, "undo", {**undo, "dryRun": False}).status == 200
    assert "fresh" not in _ctl(agent, "get", "policy", "-o", "name")


def test_a_policy_of_every_engine_is_edited_and_made_nowhere_else(agent: AgentProcess) -> None:
    """A change of one that is for all engines needs no new confirmation; to become so it needs that of agentctl."""
    body = {"name": "wide", "generation": 0, "reason": "a test", "dryRun": False}
    wide = json.loads(manifest("wide", priority=50))
    del wide["spec"]["selector"]
    refused = _write(agent, "policy", {**body, "manifest": json.dumps(wide)})
    assert (refused.status, "confirm with --all" in refused.body["error"]) == (400, True)
    assert _ctl(agent, "set-policy", "wide", "--all", "--priority=50", "--kv-load-failure=recompute")
    shown = ask(page_of(agent), "/api/policy", name="wide").body
    change = {"manifest": shown["manifest"], "generation": shown["generation"], "changes": {"priority": "60"}}
    assert _write(agent, "policy", {**body, **change}).status == 200
    narrow = json.loads(manifest("decode-default"))
    del narrow["spec"]["selector"]
    found = {**body, "name": "decode-default", "generation": 1, "manifest": json.dumps(narrow)}
    assert "confirm with --all" in _write(agent, "policy", found).body["error"]
    assert _ctl(agent, "delete", "policy", "wide")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "kind: TransferPolicy",
        "x" * 300_000,
        manifest("other"),
        manifest("a") + "\n---\n" + manifest("b"),
    ],
)
def test_a_wrong_manifest_is_refused_with_a_sentence(agent: AgentProcess, text: str) -> None:
    """Nothing is changed."""
    before = _ctl(agent, "get", "policy", "-o", "name")
    answer = _write(agent, "policy", {"name": "mine", "manifest": text, "dryRun": False})

    assert answer.status == 400
    assert answer.body["error"]
    assert _ctl(agent, "get", "policy", "-o", "name") == before


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("[" + "1," * 120_000 + "]", "line 1: this is more than 5000 values"),
        ("[" * 250_000, "line 1: this is more than 32 levels deep; write it flat"),
        ("kind: List\nitems:\n" + "- 1\n" * 4_000, "the text has 4000 manifests; write one"),
    ],
)
def test_a_manifest_that_takes_long_is_refused(agent: AgentProcess, written: str, sentence: str) -> None:
    """Bounded as a value of a source is: in values and in depth."""
    answer = _write(agent, "policy", {"name": "late", "manifest": written, "dryRun": True})
    assert answer.status == 400
    assert sentence in answer.body["error"]


def test_an_engine_is_paused_and_resumed(agent: AgentProcess) -> None:
    """A dry run says which; the pause is on the screen, with its author."""
    page = page_of(agent)
    body: dict[str, Any] = {"engine": "decode/1", "seconds": 600, "reason": "a test", "undo": False}
    tried = _write(agent, "pause", {**body, "dryRun": True})
    assert [row["cells"] for row in tried.body["sections"][0]["rows"]] == [["decode/1", "connected", "no"]]
    assert tried.body["command"] == "agentctl pause decode/1 --ttl=600s '--reason=a test'"
    assert _write(agent, "pause", {**body, "dryRun": False}).status == 200
    with Tab(page) as tab:

        def paused_of(data: Any) -> Any:
            return next((each for each in data["banners"] if each["kind"] == "paused"), None)

        paused = paused_of(tab.until("screen", paused_of).data)
        assert "engine decode/1 is ordered to pause" in paused["sentence"]
        assert f"by {AUTHOR} (page)" in paused["sentence"]
    assert _write(agent, "pause", {**body, "undo": True, "dryRun": False}).status == 200
    assert '"paused": true' not in _ctl(agent, "get", "engines", "-o", "json")


def test_a_peer_is_quarantined_and_released(agent: AgentProcess) -> None:
    """As by agentctl, whose command the answer has."""
    body: dict[str, Any] = {"engine": "", "peer": PEERS[3], "seconds": 60, "reason": "slow", "undo": False}
    tried = _write(agent, "quarantine", {**body, "dryRun": True})
    assert PEERS[3] in tried.body["sentence"]
    assert PEERS[3] not in _ctl(agent, "quarantine", "list")
    assert _write(agent, "quarantine", {**body, "dryRun": False}).status == 200
    assert PEERS[3] in _ctl(agent, "quarantine", "list")
    lifted = _write(agent, "quarantine", {**body, "undo": True, "dryRun": False})
    assert lifted.status == 200
    assert "the end of the quarantine" in lifted.body["sentence"]
    stranger = _write(agent, "quarantine", {**body, "peer": "1.2.3.4:5", "dryRun": True})
    assert "no engine knows" in stranger.body["sentences"][0]


def test_details_say_what_agentctl_says(agent: AgentProcess) -> None:
    """Line by line, for what does not change with time."""
    page = page_of(agent)
    engine = _texts(ask(page, "/api/engine", key="decode/0"))
    assert "kvLoadFailure.action" in engine
    assert "Role: decode" in engine
    without = "without: time in the handshake queue (nixl)"
    wait_until(lambda: without in _texts(ask(page, "/api/engine", key="prefill/0")), "the snapshot is there")
    assert without in _ctl(agent, "describe", "engine", "prefill/0")
    peer = _texts(ask(page, "/api/peer", engine="decode/0", peer=PEERS[0]))
    assert "handshake/refused" in peer
    request = ask(page, "/api/request", id="cmpl-wait-0-0").body
    explained = json.loads(_ctl(agent, "explain", "cmpl-wait-0-0", "-o", "json"))
    assert len(request["sentences"]) == len(explained["sentences"])
    assert [each["kind"] for each in request["sections"]][-1] == "waterfall"
    events = ask(page, "/api/events", peer=PEERS[0], kind="transfer_failure", seconds=900, limit=5).body
    assert len(events["sections"][0]["rows"]) == 5
    assert (
        events["command"]
        == f"agentctl get events --limit=5 --peer={PEERS[0]} --kind=transfer_failure --since=900s"
    )
    policies = ask(page, "/api/policies").body["sections"][0]
    assert "decode-default" in [row["cells"][0] for row in policies["rows"]]
    assert "deferral" in _texts(ask(page, "/api/policy", name="decode-default"))


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/absent", {}, 404),
        ("/api/request", {}, 400),
        ("/api/request", {"id": "no-such-request"}, 404),
        ("/api/request", {"id": "x" * 2_000}, 400),
        ("/api/engine", {"key": "no/7"}, 404),
        ("/api/engine", {"key": "/"}, 400),
        ("/api/peer", {"peer": "no"}, 404),
        ("/api/policy", {"name": "no"}, 404),
        ("/api/events", {"kind": "no"}, 400),
        ("/api/events", {"mode": "no"}, 400),
        ("/api/events", {"limit": "-1"}, 400),
        ("/api/events", {"limit": "9" * 30}, 400),
        ("/api/stream", {"seconds": "x"}, 400),
        ("/api/stream", {"seconds": "9" * 30}, 400),
    ],
)
def test_a_wrong_question_is_answered_with_a_sentence(
    agent: AgentProcess, path: str, query: dict[str, str], status: int
) -> None:
    """And the status that says whose fault it is."""
    answer = ask(page_of(agent), path, **query)

    assert answer.status == status
    assert answer.body["error"]


def test_what_engines_say_is_text(fleet: tuple[AgentProcess, list[FakeEngine]]) -> None:
    """A thousand hostile names of requests and peers: valid JSON, one message each, and commands that are quoted."""
    agent, engines = fleet
    page = page_of(agent)
    names = [f"{HOSTILE[number % len(HOSTILE)]}{number}" for number in range(1_000)]
    with Tab(page) as tab:
        tab.until("log")
        for first in range(0, 1_000, 100):
            now = time.time_ns()
            engines[0].publish(
                *(
                    transfer_failure(name, peer=f"{name[:200]}:1", error_text=name, time_ns=now)
                    for name in names[first : first + 100]
                )
            )
        tab.until("log", lambda data: any(entry["request"].endswith("999") for entry in data["entries"]))
        screen = tab.until("screen", lambda data: data["peers"]["total"] > 50)
        assert screen.size <= MAX_BYTES
        assert {each.event for each in tab.seen} <= {
            "hello",
            "history",
            "signals",
            "map",
            "pulse",
            "screen",
            "log",
            "earlier",
        }
        assert len(tab.entries()) == 1_000
        assert all(each.size <= MAX_BYTES for each in tab.seen)
    for query in ({"peer": "<script>alert(1)</script>0:1"}, {"limit": "1000"}):
        assert _texts(ask(page, "/api/events", **query))
    assert ask(page, "/api/request", id="<script>alert(1)</script>0").body["command"] == (
        "agentctl explain '<script>alert(1)</script>0'"
    )
