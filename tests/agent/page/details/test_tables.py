"""The tables of the panels from made-up answers: what is not told is not known, and failures are counted by kind."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.page.details.tables import (
    NO_POLICY,
    condition_sentence,
    failed_section,
    peers_section,
    policy_section,
    readers_section,
    traffic_words,
)
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

_NOW = 1_750_000_000.0


def _peer(**values: Any) -> admin.PeerSummary:
    return admin.PeerSummary(key={"server": "decode", "engine": "0"}, peer={"address": "h:1"}, **values)


def _failure(age: float, mode: int, error: int = common.ERROR_TYPE_REFUSED) -> admin.LoggedEvent:
    found = admin.LoggedEvent()
    found.event.time_unix_nano = round((_NOW - age) * 1e9)
    found.event.transfer_failure.mode = mode  # type: ignore[assignment]
    found.event.transfer_failure.error_type = error  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (_peer(condition=admin.PEER_CONDITION_OK), "Nothing is wrong with it for engine decode/0"),
        (_peer(), "What is wrong with it for engine decode/0 is not known: the agent does not tell"),
        (
            _peer(condition=admin.PEER_CONDITION_IDLE),
            "Engine decode/0 has tried nothing with it for 15 minutes: whether something is wrong is not known",
        ),
        (
            _peer(
                condition=admin.PEER_CONDITION_OTHER_WEIGHTS,
                condition_since={"seconds": round(_NOW) - 90},
                condition_reason="digests\ndiffer",
            ),
            "It is other weights for engine decode/0 since 15:05:10 UTC, 90s ago: digests differ",
        ),
        (
            _peer(condition=admin.PEER_CONDITION_FAILING),
            "It is failing for engine decode/0 (since when is not known)",
        ),
    ],
)
def test_the_first_sentence_says_what_is_wrong_and_since_when(item: admin.PeerSummary, sentence: str) -> None:
    """What is not known is not nothing."""
    assert condition_sentence(item, _NOW) == sentence


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (_peer(), "not known"),
        (_peer(condition=admin.PEER_CONDITION_OK), "nothing"),
        (_peer(condition=admin.PEER_CONDITION_OK, transfers_ok=3), "not known"),
        (
            _peer(
                traffic=[
                    {
                        "channel": common.CHANNEL_KV,
                        "direction": common.DIRECTION_RECEIVE,
                        "last_15_minutes": {"transfers_ok": 20, "transfers_failed": 3},
                    },
                    {"channel": common.CHANNEL_EC, "direction": common.DIRECTION_SEND},
                ]
            ),
            "kv in 20 ok, 3 failed, ec out not known",
        ),
    ],
)
def test_traffic_has_its_directions(item: admin.PeerSummary, words: str) -> None:
    """An older agent does not tell them."""
    assert traffic_words(item) == words


def test_failures_are_counted_by_kind() -> None:
    """Those of the last hour from the entries, all from the engines' counters, and never one by one."""
    counters = [
        {"mode": common.FAILURE_MODE_HANDSHAKE, "error_type": common.ERROR_TYPE_REFUSED, "count": count}
        for count in (40, 2)
    ]
    items = [_peer(failures=[each]) for each in counters]
    events = [
        *(_failure(age, common.FAILURE_MODE_HANDSHAKE) for age in (3000, 60, 30)),
        _failure(2000, common.FAILURE_MODE_TRANSFER, common.ERROR_TYPE_TIMEOUT),
    ]
    found = failed_section(items, admin.ListEventsResponse(events=events), _NOW)
    assert [row.cells for row in found.rows] == [
        ("handshake", "refused", "2", "3", "42", "30s ago"),
        ("transfer", "timeout", "0", "1", "not known", "33m ago"),
    ]
    cut = failed_section(items, admin.ListEventsResponse(events=events[1:3], truncated=True), _NOW)
    assert [row.cells[2:4] for row in cut.rows] == [("≥2", "≥2")]
    assert failed_section([], admin.ListEventsResponse(), _NOW).sentence == "no failure is known"


def test_what_is_left_out_of_a_long_table_is_counted() -> None:
    """Thirty rows, the worst first, as the answer has them."""
    items = [_peer(condition=admin.PEER_CONDITION_SLOW)] * 34
    for found in (readers_section("Who", items, _NOW), peers_section(items, _NOW)):
        assert len(found.rows) == 30
        assert found.sentence == "4 more are left out; the command lists all"
        assert "slow" in found.rows[0].cells
        assert "not known" in found.rows[0].cells


def test_a_policy_says_what_it_does_about_loads() -> None:
    """Also what it would do in mode observe; another field is not about it."""
    fields = [
        admin.FieldChange(field=name, new_value="x", new_policy="p")
        for name in (
            "deferral.maxStartWait",
            "observed.peerQuarantine.failures",
            "telemetry.traceSampleRatio",
        )
    ]
    effective = admin.EffectivePolicy(fields=fields)
    found = policy_section("P", effective, sections=("deferral", "peerQuarantine"))
    assert [row.cells[0] for row in found.rows] == [each.field for each in fields[:2]]
    assert [row.link.name for row in found.rows if row.link] == ["p", "p"]
    assert (
        policy_section("P", effective, sections=("ejection",)).sentence == "its policies say nothing about it"
    )
    assert policy_section("P", admin.EffectivePolicy()).sentence == NO_POLICY
