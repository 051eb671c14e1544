"""What a relay alone knows: pairs whose two ends are of two agents."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.relay import merged_answers
from penstock.agent.relay.merged_sides import causes_between_agents
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL, Role
from penstock.proto.v1.snapshot_pb2 import EngineFacts

_NOW = 1_800_000_000_000_000_000


def _engine(server: str, role: Role, digest: str, peer: str = "") -> admin.PairEngine:
    name = f"{server or 'x'}-{role}"
    facts = EngineFacts(
        model="m", role=role, kv_connector="NixlConnector", kv_engine_id=name, compatibility_hash="h",
        weights={"digest": digest}, side_channel=f"{name}:1" if role == ROLE_PREFILL else "",
    )  # fmt: skip
    peers = [{"status": {"peer": {"address": peer}}}] if peer else []
    return admin.PairEngine(key={"server": server, "engine": "0"}, role=role, facts=facts, peers=peers)


def _pairs(*, met: bool = False) -> list[tuple[str, Any]]:
    """Return two agents with one engine of a weight each, and one whose two engines differ among themselves."""
    decode = _engine("", ROLE_DECODE, "aaa", f"x-{ROLE_PREFILL}:1" if met else "")
    return [
        ("a", admin.ListPairsResponse(engines=[decode])),
        ("b", admin.ListPairsResponse(engines=[_engine("", ROLE_PREFILL, "bbb")])),
    ]


def _found(request: admin.DiagnoseRequest, *seen: admin.DiagnosedCause, met: bool = False) -> list[str]:
    answers = [("a", admin.Diagnosis(causes=seen))]
    return [each.sentence for each in causes_between_agents(_pairs(met=met), answers, request, _NOW)]


_SAID = ["engine a/0 and engine b/0 have loaded different weights: answers will be wrong"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (admin.DiagnoseRequest(), _SAID),
        (admin.DiagnoseRequest(selector={}), _SAID),
        (admin.DiagnoseRequest(selector={"engines": [{"server": "b", "engine": "0"}]}), _SAID),
        (admin.DiagnoseRequest(selector={"engines": [{"server": "c", "engine": "0"}]}), []),
        # Which engines have the labels, agents know; and an earlier moment's pairs nobody.
        (admin.DiagnoseRequest(selector={"labels": "tier=a"}), []),
        (admin.DiagnoseRequest(at={"seconds": 5}), []),
    ],
)
def test_a_pair_of_two_agents(request_: admin.DiagnoseRequest, said: list[str]) -> None:
    """Its cause, if its engines are asked for as they are now."""
    assert _found(request_) == said


def test_a_pair_of_one_agent_is_its_own() -> None:
    """That agent's diagnosis has it."""
    engines = [_engine("d", ROLE_DECODE, "aaa"), _engine("p", ROLE_PREFILL, "bbb")]
    pairs = [("a", admin.ListPairsResponse(engines=engines))]
    assert merged_answers.pairs(pairs, admin.ListPairsRequest()).pairs[0].weights == admin.PAIR_WEIGHTS_DIFFER
    pairs = [
        (
            "a",
            admin.ListPairsResponse(
                engines=[_engine("d", ROLE_DECODE, "a"), _engine("p", ROLE_PREFILL, "b")]
            ),
        )
    ]
    assert causes_between_agents(pairs, [], admin.DiagnoseRequest(), _NOW) == []


def test_a_peer_that_an_agent_has_judged_is_told_once() -> None:
    """It has seen the handshake fail, or the weights."""
    cause = admin.DiagnosedCause(kind="weights_differ", peer=f"x-{ROLE_PREFILL}:1")
    assert _found(admin.DiagnoseRequest(), met=True) == _SAID
    assert _found(admin.DiagnoseRequest(), cause, met=True) == []


def test_many_pairs_of_one_kind_are_one_cause() -> None:
    """Of which the relay says how many there are."""
    between = [
        admin.DiagnosedCause(
            kind="weights_differ", sentence=f"pair {number}", engines=[{"server": f"d-{number}"}]
        )
        for number in range(9)
    ]
    merged = merged_answers.diagnosis(
        [("a", admin.Diagnosis(verdict=admin.DIAGNOSIS_VERDICT_NOTHING_WRONG))],
        admin.DiagnoseRequest(),
        (),
        between,
    )
    assert [(each.kind, each.sentence) for each in merged.causes] == [
        ("weights_differ", "pair 0 (the worst of 9, on 9 engines)")
    ]
    assert merged.verdict == admin.DIAGNOSIS_VERDICT_CAUSES


def _versions(*, met: bool) -> list[tuple[str, Any]]:
    """Return an agent with a decode engine, and two with a prefill engine of another version."""
    decode, *prefills = (
        ("a", _engine("", ROLE_DECODE, "w", f"b-{ROLE_PREFILL}:1" if met else "")),
        ("b", _engine("", ROLE_PREFILL, "w")),
        ("c", _engine("", ROLE_PREFILL, "w")),
    )
    for name, engine in (decode, *prefills):
        engine.facts.ClearField("compatibility_hash")
        engine.facts.vllm_version = "0.32.0" if name == "a" else "0.31.0"
        engine.facts.kv_engine_id = name
        if name != "a":
            engine.facts.side_channel = f"{name}-{ROLE_PREFILL}:1"
    return [(name, admin.ListPairsResponse(engines=[engine])) for name, engine in (decode, *prefills)]


def test_a_fleet_of_two_versions_is_one_cause() -> None:
    """The agent whose engine has tried knows the failed handshake: an effect."""
    refused = admin.DiagnosedCause(
        kind="incompatible_peer",
        peer=f"b-{ROLE_PREFILL}:1",
        engines=[{"engine": "0"}],
        sentence="refused",
        harm=99,
    )
    answers = [
        ("a", admin.Diagnosis(causes=[refused], verdict=admin.DIAGNOSIS_VERDICT_CAUSES)),
        *((name, admin.Diagnosis(verdict=admin.DIAGNOSIS_VERDICT_NOTHING_WRONG)) for name in "bc"),
    ]
    between = causes_between_agents(_versions(met=True), answers, admin.DiagnoseRequest(), _NOW)
    (cause,) = merged_answers.diagnosis(answers, admin.DiagnoseRequest(), (), between).causes
    assert (cause.kind, cause.agents) == ("versions_mixed", 1)
    assert cause.harm > 99
    assert "run vLLM 0.31.0 and 0.32.0:" in cause.sentence
    assert [(each.kind, each.peer) for each in cause.effects] == [
        ("incompatible_pair", ""),
        ("incompatible_peer", f"b-{ROLE_PREFILL}:1"),
    ]


def test_one_id_in_two_agents() -> None:
    """No agent alone sees it; one engine that two agents list is none, and an agent's own two are its own."""

    def prefill(server: str, began: int, address: str = "") -> admin.PairEngine:
        one = _engine(server, ROLE_PREFILL, "aaa")
        one.facts.kv_engine_id, one.facts.start_time_unix_nano = "fixed", began
        one.facts.side_channel = address or one.facts.side_channel
        return one

    def said(*engines: tuple[str, admin.PairEngine]) -> list[tuple[str, str]]:
        pairs = [(name, admin.ListPairsResponse(engines=[one])) for name, one in engines]
        return [
            (each.kind, each.sentence.partition(":")[0])
            for each in causes_between_agents(pairs, [], admin.DiagnoseRequest(), _NOW)
        ]

    two = [("a", prefill("", 5, "p:1")), ("b", prefill("", 6, "q:1"))]
    assert said(*two) == [("engine_id_shared", "engines a/0, b/0 have one connector engine id (fixed)")]
    assert said(("a", prefill("", 5, "p:1")), ("b", prefill("", 5, "p:1"))) == []
    assert said(("a", prefill("p", 5)), ("a", prefill("q", 5))) == []
