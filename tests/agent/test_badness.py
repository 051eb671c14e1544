"""The order of how bad a peer is, and what it keeps from the first place."""

from __future__ import annotations

import pytest
from penstock.agent.badness import NO_SERVERS, badness, list_place
from penstock.agent.diagnosis import merge_diagnoses
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import PEER
from tests.support.agent.diagnosed import calm, decided, failed, verdict_of

_WORST_LAST = (
    "OK", "QUARANTINED", "SLOW", "FAILING", "INCOMPATIBLE", "UNREACHABLE", "LOST", "WRONG_ENGINE", "HANGING", "OTHER_WEIGHTS", "SHARED_ID",
)  # fmt: skip


def test_every_condition_has_its_place() -> None:
    """The numbers of the wire are in no order; one of a newer version is the worst."""
    conditions = [admin.PeerCondition.Value(f"PEER_CONDITION_{name}") for name in _WORST_LAST]
    assert sorted(conditions, key=badness) == conditions
    assert len({*map(badness, conditions)}) == len(conditions)
    well = {number for number in admin.PeerCondition.values() if not badness(number)}
    assert well == {0, admin.PEER_CONDITION_OK, admin.PEER_CONDITION_IDLE}
    assert badness(99) > max(map(badness, admin.PeerCondition.values()))


def test_what_is_no_server_stands_behind_the_peers_in_trouble() -> None:
    """And before those that are well."""
    failing, slow, ok = admin.PEER_CONDITION_FAILING, admin.PEER_CONDITION_SLOW, admin.PEER_CONDITION_OK
    rows = [(ok, PEER), (ok, "disk"), (slow, "host"), (failing, "unknown"), (slow, PEER), (failing, PEER)]
    rows.sort(key=lambda row: list_place(*row))
    assert rows[:4] == [(failing, PEER), (slow, PEER), (failing, "unknown"), (slow, "host")]


@pytest.mark.parametrize("name", sorted(NO_SERVERS))
def test_no_headline_is_about_a_peer_that_is_none(name: str) -> None:
    """Whatever harm it does: another cause that lasts leads; nor at a relay."""
    many = [failed(f"r{each}", each, name) for each in range(1, 40)]
    ends = [decided(f"r{each}", each, peer={"address": name}) for each in range(1, 40)]
    one = failed("r", 5, PEER, error_type=common.ERROR_TYPE_TIMEOUT)
    found = verdict_of([*calm(), *many, *ends, one])
    assert [cause.peer for cause in found.causes] == [PEER, name]
    assert found.causes[0].harm < found.causes[1].harm
    assert PEER in found.sentence
    alone = verdict_of([*calm(), *many, *ends])
    assert alone.sentence.startswith(NO_SERVERS[name])

    causes = [
        admin.DiagnosedCause(kind="peer_refuses", peer=name, harm=900, sentence="a"),
        admin.DiagnosedCause(kind="peer_slow", peer=PEER, harm=1, sentence="b"),
    ]
    assert merge_diagnoses([("pod", admin.Diagnosis(causes=causes))]).sentence.startswith("b")
