"""What a router is told of answers of the admin service: states are quoted, and what is not known is never ok."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from penstock.agent.views.router_feed import (
    MAX_BODY_BYTES,
    MAX_READERS,
    FeedAnswers,
    RelayFeed,
    agent_feed,
    bounded_json,
    relay_feed,
)
from penstock.agent.views.router_feed.json_schema import schema
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN

from tests.support.examples import examples

NOW = 1_800_000_000.0
_VALIDATOR = Draft202012Validator(schema())
_READ = {"last_15_minutes": {"count": 3}}


def key(server: str) -> dict[str, str]:
    """Return the key of engine 0 of a server."""
    return {"server": server, "engine": "0"}


def peer(condition: int, reader: str = "d", address: str = "p:1", **fields: Any) -> admin.PeerSummary:
    """Return a peer that was read in the last 15 minutes; *fields* override."""
    values = {"key": key(reader), "peer": {"address": address}, "condition": condition, "transfers": _READ}
    return admin.PeerSummary(**{**values, **fields})


def said(
    *peers: admin.PeerSummary,
    away: tuple[str, ...] = (),
    causes: tuple[admin.DiagnosedCause, ...] = (),
    quarantines: tuple[admin.Quarantine, ...] = (),
    pairs: tuple[admin.Pair, ...] = (),
    coverage: admin.RelayCoverage | None = None,
    total: int = 0,
) -> FeedAnswers:
    """Return answers: all readers are connected but those *away*."""
    readers = dict.fromkeys((item.key.server, item.key.engine) for item in peers)
    engines = [
        admin.Engine(
            key={"server": server, "engine": engine},
            connected=server not in away,
            facts={"side_channel": f"{server}:5600"},
        )
        for server, engine in readers
    ]
    return FeedAnswers(
        peers=admin.ListPeersResponse(peers=peers, total=total),
        engines=admin.ListEnginesResponse(engines=engines),
        quarantines=admin.ListQuarantinesResponse(quarantines=quarantines),
        diagnosis=admin.Diagnosis(causes=causes),
        pairs=admin.ListPairsResponse(pairs=pairs),
        coverage=coverage,
    )


_STATES: list[tuple[int, str]] = [
    (admin.PEER_CONDITION_UNSPECIFIED, "unknown"),
    (admin.PEER_CONDITION_OK, "ok"),
    (admin.PEER_CONDITION_QUARANTINED, "quarantined"),
    (admin.PEER_CONDITION_SLOW, "slow"),
    (admin.PEER_CONDITION_FAILING, "failing"),
    (admin.PEER_CONDITION_HANGING, "failing"),
    (admin.PEER_CONDITION_IDLE, "unknown"),
    (admin.PEER_CONDITION_UNREACHABLE, "unreachable"),
    (admin.PEER_CONDITION_INCOMPATIBLE, "incompatible"),
    (admin.PEER_CONDITION_LOST, "unreachable"),
    (admin.PEER_CONDITION_WRONG_ENGINE, "unreachable"),
    (admin.PEER_CONDITION_OTHER_WEIGHTS, "incompatible"),
    (admin.PEER_CONDITION_SHARED_ID, "incompatible"),
    # Of a newer version.
    (99, "unknown"),
]


@pytest.mark.parametrize(("condition", "state"), _STATES)
def test_each_condition_has_a_state(condition: int, state: str) -> None:
    """Each that there is, too: a new one is unknown until somebody decides."""
    (row,) = agent_feed(said(peer(condition)), NOW).peers
    assert row.state == state
    assert (row.reader.engine, row.reader.address, row.source.address) == ("d/0", "d:5600", "p:1")


def test_every_condition_is_in_the_table() -> None:
    """But for that of a newer version."""
    assert {condition for condition, _ in _STATES} - {99} == set(admin.PeerCondition.values())


def test_what_is_not_known_is_not_ok() -> None:
    """A peer that nobody has read lately, and one whose reader has gone, whatever was said of it last."""
    waiting = peer(admin.PEER_CONDITION_OK, transfers={}, in_flight=3)
    (row,) = agent_feed(said(waiting), NOW).peers
    assert (row.state, row.condition, row.why) == (
        "unknown",
        "ok",
        "no read from it has ended in the last 15 minutes",
    )
    for condition in admin.PeerCondition.values():
        (row,) = agent_feed(said(peer(condition), away=("d",)), NOW).peers
        assert (row.state, row.why, row.since) == ("unknown", "its reader d/0 is not connected", None)
    served = peer(admin.PEER_CONDITION_OK, transfers={}, waits={"last_minute": {"count": 1}})
    assert agent_feed(said(served), NOW).peers[0].state == "ok"


def test_a_quarantine_says_why_and_until_when() -> None:
    """By its order, or by what the engine reports of its own."""
    status = {"quarantine": QUARANTINE_STATE_OPEN, "quarantine_until_unix_nano": 1_800_000_060_000_000_000}
    item = peer(admin.PEER_CONDITION_QUARANTINED, status=status)
    (row,) = agent_feed(said(item), NOW).peers
    assert (row.why, row.until, row.confidence) == ("quarantined", "2027-01-15T08:01:00.000Z", None)
    order = admin.Quarantine(key=key("d"), peer={"address": "p:1"}, reason="NIC is being replaced")
    order.until.FromSeconds(1_800_000_001)
    (row,) = agent_feed(said(item, quarantines=(order,)), NOW).peers
    assert (row.why, row.until) == ("quarantined: NIC is being replaced", "2027-01-15T08:00:01.000Z")


def test_the_confidence_is_the_diagnosis_own() -> None:
    """By its sentence, or by reader and peer; none where the engine has counted itself, and of what has ended."""
    sentence = "peer p:1 refuses connections"
    cause = admin.DiagnosedCause(
        kind="peer_refuses",
        sentence=f"{sentence} (the worst; seen by 2 of 2 agents)",
        confidence=admin.DIAGNOSIS_CONFIDENCE_LIKELY,
        engines=[key("d")],
        peer="p:1",
    )
    quoted = peer(admin.PEER_CONDITION_UNREACHABLE, condition_reason=sentence)
    about = peer(admin.PEER_CONDITION_INCOMPATIBLE, condition_reason="of a second before")
    counted = peer(admin.PEER_CONDITION_FAILING, condition_reason="2 failures in the last minute")
    for item, expected in ((quoted, "likely"), (about, "likely"), (counted, None)):
        assert agent_feed(said(item, causes=(cause,)), NOW).peers[0].confidence == expected
    cause.until.FromSeconds(1)
    assert agent_feed(said(quoted, causes=(cause,)), NOW).peers[0].confidence is None


@pytest.mark.parametrize(("failed", "read", "share"), [(0, 0, None), (0, 4, 0.0), (1, 2, 0.333), (5, 0, 1.0)])
def test_the_share_is_of_the_last_minute(failed: int, read: int, share: float | None) -> None:
    """Failed loads of these and the transfers that succeeded."""
    windows = {"last_minute": {"count": read}, "last_15_minutes": {"count": read + 1}}
    item = peer(admin.PEER_CONDITION_FAILING, failures_last_minute=failed, transfers=windows)
    assert agent_feed(said(item), NOW).peers[0].share == share


def test_memory_and_disk_are_no_peers() -> None:
    """Nobody can choose them."""
    assert agent_feed(said(peer(admin.PEER_CONDITION_SLOW, address="host")), NOW).peers == []


@pytest.mark.parametrize(
    ("conditions", "state", "agree", "lately"),
    [
        (["OK", "OK", "FAILING"], "ok", 2, 3),
        (["OK", "FAILING"], "failing", 1, 2),
        (["SLOW", "UNREACHABLE", "IDLE"], "unreachable", 1, 2),
        (["IDLE", "IDLE", "OK"], "ok", 1, 1),
        (["IDLE", "IDLE"], "unknown", 0, 0),
    ],
)
def test_an_endpoint_is_what_most_readers_say(
    conditions: list[str], state: str, agree: int, lately: int
) -> None:
    """Of those that know; of two that are as many, the worse."""
    rows = [
        peer(admin.PeerCondition.Value(f"PEER_CONDITION_{each}"), f"d{number}")
        for number, each in enumerate(conditions)
    ]
    (endpoint,) = relay_feed(said(*rows), NOW).endpoints
    assert (endpoint.state, endpoint.agree, endpoint.read_lately) == (state, agree, lately)
    assert sum(endpoint.states.values()) == len(conditions) == len(endpoint.readers)


@pytest.mark.parametrize(
    ("readers", "state", "agree", "lately"),
    [
        ({"a/d": ["FAILING"] * 9, "b/d": ["OK"], "c/d": ["OK"]}, "ok", 2, 3),
        ({"a/d": ["FAILING"] * 9, "b/d": ["OK", "OK", "FAILING"], "c": ["OK", "IDLE"]}, "ok", 2, 3),
        ({"a/d": ["FAILING", "OK"], "b/d": ["FAILING"], "c/d": ["OK"] * 9}, "failing", 2, 3),
        ({"a/d": ["FAILING"], "b/d": ["IDLE"] * 9}, "failing", 1, 1),
        ({"a/d": ["OK"], "a/e": ["FAILING"] * 2, "b/d": ["OK"]}, "failing", 1, 2),
        ({"": ["OK", "OK", "FAILING"]}, "ok", 1, 1),
        ({"a/d": ["IDLE"]}, "unknown", 0, 0),
    ],
)
def test_an_agent_has_one_vote(readers: dict[str, list[str]], state: str, agree: int, lately: int) -> None:
    """However many engines it has; of them those that know count."""
    rows = [
        peer(
            admin.PeerCondition.Value(f"PEER_CONDITION_{each}"),
            key={"server": server, "engine": str(number)},
        )
        for server, conditions in readers.items()
        for number, each in enumerate(conditions)
    ]
    (endpoint,) = relay_feed(said(*rows), NOW, by_agent=True).endpoints
    assert (endpoint.state, endpoint.agree, endpoint.read_lately) == (state, agree, lately)


def test_pairs_that_must_not_be_formed() -> None:
    """Those that do not fit, and those with other weights; with the address of a source that the reader has not met."""
    pairs = (
        admin.Pair(
            key=key("d"), peer_key=key("p"), weights=admin.PAIR_WEIGHTS_DIFFER, reason="other weights"
        ),
        admin.Pair(
            key=key("d"), peer={"address": "q:1"}, compatible=admin.PAIR_COMPATIBILITY_NO, reason="block_size"
        ),
        admin.Pair(key=key("d"), peer_key=key("p"), compatible=admin.PAIR_COMPATIBILITY_YES),
    )
    feed = relay_feed(
        said(peer(admin.PEER_CONDITION_OK), peer(admin.PEER_CONDITION_OK, "p"), pairs=pairs), NOW
    )
    assert [
        (each.reader.engine, each.source.engine, each.source.address, each.why)
        for each in feed.pairs_to_avoid
    ] == [("d/0", "p/0", "p:5600", "other weights"), ("d/0", None, "q:1", "block_size")]


def test_who_is_missing_is_said() -> None:
    """Agents whose readers are not in it."""
    coverage = admin.RelayCoverage(
        asked=24, answered=2, missing=[{"name": "a", "reason": "no answer in 2 s"}]
    )
    assert relay_feed(said(coverage=coverage), NOW).missing == ["a: no answer in 2 s", "and 21 agents more"]


def test_what_is_left_out_is_counted() -> None:
    """Rows beyond the bound, rows that the list has left out, and readers of one endpoint."""
    rows = [peer(admin.PEER_CONDITION_OK, f"d{number}") for number in range(MAX_READERS + 6)]
    feed = agent_feed(said(*rows, total=100), NOW, most=10)
    assert (len(feed.peers), feed.truncated, feed.left_out) == (10, True, 90)
    combined = relay_feed(said(*rows), NOW)
    (endpoint,) = combined.endpoints
    assert (len(endpoint.readers), endpoint.agree, combined.left_out) == (MAX_READERS, len(rows), 6)


def test_a_body_has_a_bound() -> None:
    """However long what engines say is."""
    long = "\u4e00" * 1_000
    rows = [
        peer(admin.PEER_CONDITION_FAILING, f"{number}-{long}", f"{number}-{long}", condition_reason=long)
        for number in range(2_100)
    ]
    answers = said(*rows)
    body, _ = bounded_json(lambda most: agent_feed(answers, NOW, most))
    feed = json.loads(body)
    assert len(body) <= MAX_BODY_BYTES
    assert feed["truncated"]
    assert feed["leftOut"] + len(feed["peers"]) == len(rows)


_CONDITIONS = st.sampled_from([*admin.PeerCondition.values(), 99])
_WINDOWS = st.builds(
    admin.PeerWindows,
    last_minute=st.builds(admin.DurationWindow, count=st.sampled_from([0, 1, 2**64 - 1])),
    last_15_minutes=st.builds(admin.DurationWindow, count=st.sampled_from([0, 1])),
)
_PEERS = st.builds(
    admin.PeerSummary,
    key=st.builds(lambda name: admin.Engine(key=key(name)).key, st.sampled_from(["a", "b", "gone", "\u202e"])),
    peer=st.builds(lambda name: admin.PeerSummary(peer={"address": name}).peer, st.sampled_from(["", "p:1", "q:1", "disk"])),
    condition=_CONDITIONS,
    condition_reason=st.sampled_from(["", "w\n\ud7ff", "x" * 900]),
    condition_since=st.builds(
        lambda seconds: admin.Pause(since={"seconds": seconds}).since, st.sampled_from([0, -(2**62), 2**62, 1_800_000_000])
    ),
    failures_last_minute=st.sampled_from([0, 3, 2**64 - 1]),
    transfers=_WINDOWS,
    waits=_WINDOWS,
    status=st.builds(
        lambda until: admin.PeerSummary(status={"quarantine_until_unix_nano": until}).status,
        st.sampled_from([0, 1, 2**64 - 1]),
    ),
)  # fmt: skip


@settings(max_examples=examples(200))
@given(peers=st.lists(_PEERS, max_size=12), most=st.integers(0, 12))
def test_whatever_is_said(peers: list[admin.PeerSummary], most: int) -> None:
    """Both feeds keep the schema and the bound, count what they leave out, and say ok of nothing that was not read."""
    answers = said(*peers, away=("gone",))
    counted = sum(bool(item.peer.address) and item.peer.address != "disk" for item in peers)
    agent, relay = agent_feed(answers, NOW, most), relay_feed(answers, NOW, most)
    for feed in (agent, relay):
        _VALIDATOR.validate(json.loads(feed.model_dump_json(by_alias=True)))
        assert feed.truncated == bool(feed.left_out)
    shown = [row for endpoint in relay.endpoints for row in endpoint.readers]
    for rows, left_out in ((agent.peers, agent.left_out), (shown, relay.left_out)):
        assert len(rows) == min(most, counted)
        assert len(rows) + left_out == counted
        assert all(row.reader.engine != "gone/0" for row in rows if row.state != "unknown")
    for endpoint in relay.endpoints:
        assert endpoint.read_lately == sum(endpoint.states.values()) - endpoint.states.get("unknown", 0)
        assert endpoint.agree == endpoint.states.get(endpoint.state, 0) * (endpoint.state != "unknown")
        assert (endpoint.state == "unknown") == (endpoint.read_lately == 0)


def _relay_at(answers: FeedAnswers, now: float, most: int) -> RelayFeed:
    return relay_feed(answers, now, most)


@given(peers=st.lists(_PEERS, max_size=6))
def test_the_same_is_the_same(peers: list[admin.PeerSummary]) -> None:
    """The identity has no time of its own."""
    answers = said(*peers)
    first, later = (bounded_json(partial(_relay_at, answers, now)) for now in (NOW, NOW + 9))
    assert first[1] == later[1]
    assert first[0] != later[0]
