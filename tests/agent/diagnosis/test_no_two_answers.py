"""Every reading verb and the page say the same of each recorded incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.evidence.served import BundleServer
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.incidents.claims import Claims, contradictions
from tests.support.incidents.table import INCIDENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.incidents.table import Incident


def _claims(incident: Incident) -> Claims:
    server = BundleServer(incident.path)
    try:
        with grpc.insecure_channel(server.address) as channel:
            return Claims.of(AdminStub(channel), server.now)
    finally:
        server.close()


@pytest.mark.parametrize("incident", INCIDENTS.values(), ids=INCIDENTS)
def test_no_two_answers(incident: Incident) -> None:
    """Verdict, tense, peers, cells, pairs, wrong answers, engines, stalls, doctor, metrics, explanations and bill."""
    claims = _claims(incident)
    assert claims.diagnosis.sentence
    assert contradictions(claims) == []


def _another_headline(claims: Claims) -> None:
    claims.diagnosis.sentence = "nothing is wrong"


def _an_end(claims: Claims) -> None:
    claims.diagnosis.causes[0].until.CopyFrom(claims.diagnosis.at)


def _a_late_begin(claims: Claims) -> None:
    claims.diagnosis.causes[0].since.FromNanoseconds(claims.diagnosis.at.ToNanoseconds() + 1)


def _all_peers_are_well(claims: Claims) -> None:
    for row in claims.peers.peers:
        row.condition = admin.PEER_CONDITION_OK


def _a_peer_is_lost(claims: Claims) -> None:
    row = claims.peers.peers.add()
    row.CopyFrom(claims.peers.peers[0])
    row.peer.address, row.condition = "10.9.9.9:1", admin.PEER_CONDITION_LOST


def _nine_wrong_answers(claims: Claims) -> None:
    for number in range(9):
        claims.suspects.suspects.add().request_id = f"r-{number}"


def _an_engine_is_away(claims: Claims) -> None:
    engine = claims.engines.engines.add()
    engine.key.server = "elsewhere"


def _a_pair_that_does_not_fit(claims: Claims) -> None:
    pair = claims.pairs.pairs.add(weights=admin.PAIR_WEIGHTS_DIFFER)
    pair.key.server, pair.peer.address, pair.peer_key.server = "decode", "10.9.9.9:1", "prefill"


def _a_stall(claims: Claims) -> None:
    claims.engines.engines[0].stalls.add().kind = "step_stuck"


def _no_cause(claims: Claims) -> None:
    del claims.diagnosis.causes[:]


def _other_words_about_a_request(claims: Claims) -> None:
    claims.explained.update(dict.fromkeys(claims.explained, "It was served."))


def _a_failed_request_more(claims: Claims) -> None:
    claims.bill.total.failed += 1


def _failures_that_nobody_pays_for(claims: Claims) -> None:
    claims.diagnosis.causes[0].requests_failed += 100


def _one_of_many(claims: Claims) -> None:
    claims.diagnosis.causes[0].sentence = "1 requests were recomputed"


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (_another_headline, {"_headline"}),
        (_an_end, {"_headline", "_tense", "_series"}),
        (_a_late_begin, {"_tense"}),
        (_all_peers_are_well, {"_peers", "_cells"}),
        (_a_peer_is_lost, {"_peers"}),
        (_nine_wrong_answers, {"_suspects"}),
        (_an_engine_is_away, {"_engines"}),
        (_a_pair_that_does_not_fit, {"_pairs"}),
        (_a_stall, {"_stalls"}),
        (_no_cause, {"_headline", "_peers", "_series"}),
        (_other_words_about_a_request, {"_explain"}),
        (_a_failed_request_more, {"_bill"}),
        (_failures_that_nobody_pays_for, {"_bill"}),
        (_one_of_many, {"_number"}),
    ],
)
def test_a_contradiction_is_seen(change: Callable[[Claims], None], rules: set[str]) -> None:
    """Each comparison notices that one answer is another."""
    claims = _claims(INCIDENTS["prefill-killed"])
    change(claims)
    assert {each.split(":")[0] for each in contradictions(claims)} >= rules
