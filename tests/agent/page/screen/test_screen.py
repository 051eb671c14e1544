"""The first screen from made-up answers: tables, and 64 KiB whatever comes in. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.page.screen import ScreenAnswers, build_screen, fitted
from penstock.agent.page.screen.model import Screen
from penstock.agent.page.wire import (
    MAX_MESSAGE_BYTES,
    about,
    command,
    encode,
    encode_fields,
    join_fields,
    plain,
)
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.examples import examples
from tests.support.page.shell import words_of

NOW = 1_750_000_000.0
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def _engine(number: int, name: str = "decode", **fields: Any) -> admin.Engine:
    engine = admin.Engine(key={"server": name, "engine": str(number)}, connected=True, in_sync=True, **fields)
    engine.last_seen.FromSeconds(int(NOW))
    return engine


def _peer(engine: int, address: str, **fields: Any) -> admin.PeerSummary:
    given: dict[str, Any] = {"condition": admin.PEER_CONDITION_OK, **fields}
    return admin.PeerSummary(
        key={"server": "decode", "engine": str(engine)}, peer={"address": address}, **given
    )


def _fleet(engines: int, peers: int, text: str = "") -> ScreenAnswers:
    return ScreenAnswers(
        NOW,
        NOW,
        NOW,
        status=admin.AgentStatus(degraded=text),
        engines=admin.ListEnginesResponse(
            engines=[
                _engine(each, wanted_hash="h", stalls=[{"sentence": text}] if text else [])
                for each in range(engines)
            ]
        ),
        peers=admin.ListPeersResponse(
            peers=[
                _peer(engine, f"10.0.{peer}.1:5600{text}", condition_reason=text)
                for peer in range(peers)
                for engine in range(engines)
            ]
        ),
        waits=admin.ListRequestsResponse(
            requests=[admin.RequestSummary(request_id=f"r-{each}{text}") for each in range(30)]
        ),
        diagnosis=admin.Diagnosis(
            verdict=admin.DIAGNOSIS_VERDICT_CAUSES,
            sentence=text,
            causes=[
                admin.DiagnosedCause(sentence=text, evidence=[{"fact": text}] * 20, alternatives=[text] * 20)
                for _ in range(20)
            ],
        ),
    )


def test_nothing_is_known_before_the_first_answer() -> None:
    """And each part says so."""
    screen = build_screen(ScreenAnswers(NOW))

    assert screen.verdict.state == "unknown"
    for part in (screen.verdict, screen.peers, screen.waits, screen.policy):
        assert part.sentence


def test_an_agent_without_engines_says_why_all_is_empty() -> None:
    """A sentence where there is nothing."""
    screen = build_screen(
        ScreenAnswers(
            NOW,
            engines=admin.ListEnginesResponse(),
            peers=admin.ListPeersResponse(),
            waits=admin.ListRequestsResponse(),
            diagnosis=admin.Diagnosis(
                verdict=admin.DIAGNOSIS_VERDICT_NOTHING_WRONG, sentence="nothing is wrong"
            ),
        )
    )

    assert (screen.verdict.state, screen.verdict.sentence) == ("ok", "nothing is wrong")
    assert screen.peers.sentence == "no engine has connected, so no peer is known"
    assert screen.waits.sentence == "no request is deferred"
    assert screen.policy.sentence == "no engine has connected; policies wait for it"


def test_the_worst_peers_and_engines_are_shown() -> None:
    """The agent's order is the worst first; what is left out is counted."""
    answers = _fleet(20, 50)
    assert answers.peers is not None
    answers.peers.peers.insert(0, _peer(19, "10.9.9.9:1", condition=admin.PEER_CONDITION_HANGING, deferred=3))
    peers = build_screen(answers).peers

    assert (peers.rows[0].peer, peers.rows[0].worst) == ("10.9.9.9:1", "hanging")
    assert peers.engines[0] == "decode/19"
    assert (len(peers.rows), peers.total, peers.left_out) == (30, 51, 21)
    assert peers.rows[0].cells[0].text == "hanging, 3 waiting"
    assert {cell.condition for cell in peers.rows[0].cells[1:]} == {"none"}
    assert all(tuple(cell.engine for cell in row.cells) == peers.engines for row in peers.rows)


def test_how_many_peers_there_are_is_what_the_answer_tells() -> None:
    """An answer with rows of the worst only; where even the agents do not know it, nothing is made up."""
    answers = _fleet(2, 3)
    assert answers.peers is not None
    answers.peers.total, answers.peers.total_peers = 5_000, 100
    told = build_screen(answers).peers
    answers.peers.total_peers = 0
    unknown = build_screen(answers).peers

    assert (told.total, told.left_out) == (100, 97)
    assert (unknown.total, unknown.left_out) == (None, None)
    assert fitted(build_screen(answers), 4_000)[0].peers.left_out is None


def test_a_cell_says_what_the_agent_says_of_a_peer() -> None:
    """Its condition, and the sentence behind it; a known engine is named, with its address behind."""
    answers = _fleet(2, 3)
    assert answers.peers is not None
    sentence = "engine decode/1 and engine prefill/0 have loaded different weights: 20 answers may be wrong"
    wrong, idle = answers.peers.peers[1], answers.peers.peers[4:]
    wrong.condition, wrong.condition_reason = admin.PEER_CONDITION_OTHER_WEIGHTS, sentence
    for each in answers.peers.peers[:2]:
        each.engine.server, each.engine.engine = "prefill", "0"
    for each in idle:
        each.condition = admin.PEER_CONDITION_IDLE
    found = build_screen(answers).peers.rows
    assert [(row.peer, row.address, row.worst) for row in found] == [
        ("prefill/0", "10.0.0.1:5600", "other_weights"),
        ("10.0.1.1:5600", "10.0.1.1:5600", "ok"),
        ("10.0.2.1:5600", "10.0.2.1:5600", "idle"),
    ]
    cell = next(each for each in found[0].cells if each.engine == "decode/1")
    assert (cell.condition, cell.text, cell.reason) == ("other_weights", "other weights", sentence)


def test_banners_say_what_changes_the_rest() -> None:
    """The worst first."""
    away, paused = _engine(0), _engine(1, paused=True)
    away.connected = False
    answers = ScreenAnswers(
        NOW,
        status=admin.AgentStatus(degraded="the disk is full", acknowledged_entries_lost=3),
        engines=admin.ListEnginesResponse(engines=[away, paused]),
        drills=admin.ListDrillsResponse(drills=[admin.Drill(id="d-1")]),
        policies=admin.ListPoliciesResponse(
            policies=[
                {
                    "name": "glass",
                    "author": "alice",
                    "manifest_json": json.dumps(
                        {"spec": {"priority": 950, "expiresAt": "2026-01-01T00:00:00Z"}}
                    ),
                }
            ]
        ),
        rollouts=admin.ListPolicyRolloutsResponse(
            rollouts=[{"name": "a", "state": "undecided"}, {"name": "b", "state": "promoted"}]
        ),
        quarantines=admin.ListQuarantinesResponse(
            quarantines=[{"key": {"engine": "0"}, "peer": {"address": "p:1"}, "author": "bob"}]
        ),
    )
    found = build_screen(answers).banners

    assert [each.kind for each in found] == [
        "entries_lost", "degraded", "paused", "engine_away", "drill", "quarantine", "break_glass", "rollout",
    ]  # fmt: skip
    assert "engine decode/0 is not connected" in found[3].sentence
    assert "by bob" in found[5].sentence
    assert "by alice" in found[6].sentence


def test_a_server_out_of_rotation_is_a_line() -> None:
    """By whom, why, and until when; not of a server that is not there."""
    order = {
        "since": {"seconds": int(NOW) - 120},
        "until": {"seconds": int(NOW) + 540},
        "author": "bob",
        "reason": "INC-7",
        "in_force": True,
    }
    here, gone = _engine(0, ejection=order), _engine(1, ejection=order, said_goodbye=True)
    gone.connected = False
    screen = build_screen(ScreenAnswers(NOW, engines=admin.ListEnginesResponse(engines=[here, gone])))
    found = [(each.kind, each.severity, each.sentence) for each in screen.banners]
    sentence = "engine decode/0 is out of rotation, 2m ago by bob, ends in 9m: INC-7"
    assert found[0] == ("out_of_rotation", "warning", sentence)
    here.ejection.in_force = False
    screen = build_screen(ScreenAnswers(NOW, engines=admin.ListEnginesResponse(engines=[here])))
    assert screen.banners[0].sentence.startswith("engine decode/0 is to go out of rotation, ")


def test_a_stopped_engine_is_no_alarm() -> None:
    """One that vanished beside it is a fact, until the verdict says what became of it."""
    stopped, gone = _engine(0, said_goodbye=True), _engine(1)
    stopped.connected = gone.connected = False
    answers = ScreenAnswers(NOW, engines=admin.ListEnginesResponse(engines=[stopped, gone]))
    found = [(each.severity, each.sentence) for each in build_screen(answers).banners]
    assert found == [
        ("warning", "engine decode/1 is not connected, last seen 0s ago"),
        ("info", "engine decode/0 is stopped, last seen 0s ago"),
    ]


_GONE: dict[str, Any] = {"engines": [{"server": "decode", "engine": "1"}]}


@pytest.mark.parametrize(
    ("cause", "banners"),
    [
        ({"kind": "engine_away", **_GONE}, 0),
        ({"kind": "engine_lost", **_GONE}, 0),
        ({"kind": "agent_blind", **_GONE}, 0),
        ({"kind": "peer_refuses", "effects": [{"kind": "engine_away", **_GONE}]}, 0),
        # Another thing about the engine, another engine, and what has ended do not say that it is away.
        ({"kind": "peer_refuses", **_GONE}, 1),
        ({"kind": "engine_away", "engines": [{"server": "decode", "engine": "2"}]}, 1),
        ({"kind": "engine_lost", "until": {"seconds": 5}, **_GONE}, 1),
    ],
)
def test_a_banner_does_not_say_what_the_verdict_says(cause: dict[str, Any], banners: int) -> None:
    """An engine that is away is told once."""
    gone = _engine(1)
    gone.connected = False
    diagnosis = admin.Diagnosis(verdict=admin.DIAGNOSIS_VERDICT_CAUSES, causes=[cause])
    answers = ScreenAnswers(NOW, engines=admin.ListEnginesResponse(engines=[gone]), diagnosis=diagnosis)
    assert [each.kind for each in build_screen(answers).banners] == ["engine_away"] * banners


def test_a_stall_is_the_verdict_s_alone() -> None:
    """The row of its engine quotes it."""
    stalled = _engine(1, stalls=[{"sentence": "nothing moves"}])
    screen = build_screen(ScreenAnswers(NOW, engines=admin.ListEnginesResponse(engines=[stalled])))
    assert screen.banners == ()
    assert [row.sentence for row in screen.engines.rows] == ["nothing moves"]


def test_the_policy_is_listed_by_field() -> None:
    """Engines with one value are one row; what is not in force comes first."""
    late = _engine(2, wanted_hash="h")
    late.in_sync = False
    effective = admin.EffectivePolicy(
        fields=[{"field": "kvLoadFailure.action", "new_value": "fail", "new_policy": "p"}],
        policies=[{"name": "p", "author": "alice", "changed_time_unix_nano": 5_000_000}],
    )
    engines = [_engine(0, wanted_hash="h"), _engine(1, wanted_hash="h"), late]
    rows = build_screen(
        ScreenAnswers(NOW, engines=admin.ListEnginesResponse(engines=engines), effective={"h": effective})
    ).policy.rows

    assert [(row.engines, row.in_force, row.author, row.changed) for row in rows] == [
        (1, False, "alice", 5),
        (2, True, "alice", 5),
    ]
    assert rows[1].engine_keys == ("decode/0", "decode/1")


def test_policy_fields_that_are_left_out_are_counted() -> None:
    """Those without room on the screen, and those without room in the message."""
    effective = admin.EffectivePolicy(
        fields=[
            {"field": f"field{number}", "new_value": "x" * 100, "new_policy": "p" * 100}
            for number in range(50)
        ]
    )
    engines = admin.ListEnginesResponse(engines=[_engine(0, wanted_hash="h")])
    screen = build_screen(ScreenAnswers(NOW, engines=engines, effective={"h": effective}))
    small, data = fitted(screen, 8_000)

    assert (len(screen.policy.rows), screen.policy.total) == (40, 50)
    assert len(json.loads(data)["policy"]["rows"]) == len(small.policy.rows) < 40
    assert json.loads(data)["policy"]["total"] == 50


@pytest.mark.parametrize("most", [64_000, 16_000, 8_000, 4_000, 2_500])
def test_banners_and_causes_that_are_left_out_are_counted(most: int) -> None:
    """The last banner counts the rest; at least it stays."""
    drills = [admin.Drill(id=f"drill-{number}", spec={"author": "x" * 100}) for number in range(30)]
    answers = replace(_fleet(30, 0), drills=admin.ListDrillsResponse(drills=drills))
    screen, data = fitted(build_screen(answers), most)

    assert len(data) <= most
    *shown, last = screen.banners
    assert [each.left_out for each in shown] == [0] * len(shown)
    assert last.left_out == 30 - len(shown)
    assert last.sentence == f"{last.left_out} more; 'agentctl doctor' lists all"
    assert screen.verdict.left_out == 20 - len(screen.verdict.causes)


@pytest.mark.parametrize(("engines", "peers"), [(256, 100), (1, 1), (300, 3), (3, 2_000)])
def test_a_large_fleet_fits(engines: int, peers: int) -> None:
    """Rows are left out, and counted."""
    screen, data = fitted(build_screen(_fleet(engines, peers, "x" * 300)))

    assert len(data) <= MAX_MESSAGE_BYTES
    assert screen.peers.total == peers
    assert screen.peers.left_out == peers - len(screen.peers.rows)
    assert screen.engines.total == engines
    assert json.loads(data)["verdict"]["sentence"] == "x" * 300


@settings(deadline=None, max_examples=examples(60))
@given(ANY, st.integers(0, 16), st.integers(0, 40))
def test_whatever_engines_say_is_text_and_fits(text: str, engines: int, peers: int) -> None:
    """As JSON in one line of an event stream; the same in parts as at once."""
    whole = build_screen(_fleet(engines, peers, text))
    _, data = fitted(whole)

    assert join_fields(Screen, encode_fields(whole)) == encode(whole)
    assert len(data) <= MAX_MESSAGE_BYTES
    assert b"\n" not in data
    assert b"\r" not in data
    json.loads(data)


@given(st.text(max_size=500))
def test_text_has_no_marks_of_styles(text: str) -> None:
    """A lone surrogate is no character that the page could show; nothing is longer than a line."""
    found = plain(f"\ud831{text}\ud800")

    assert encode(found).decode()
    assert len(found) <= 400
    assert not any("\ud800" <= character <= "\udfff" for character in found)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), min_size=1
    )
)
def test_commands_are_quoted_for_a_shell(words: list[str]) -> None:
    """A name of an engine is one word, and none is an option."""
    assert words_of(command(*words)) == words
    assert words_of(about("explain", name=f"-{words[0]}")) == ["explain", "--", f"-{words[0]}"]
